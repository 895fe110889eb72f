/* Convolutions for one width of vectors: what conv.c has widths.h compile. Images lie [height, width, channels], so that
 * what a kernel's row covers of an image's row is one run of floats, and its neighbour begins a stride later. */

#include "tiles.h"

/* y = max(0, convolution of x), one image. `panels`: of PANEL channels each, the biases, then [kernel, kernel, channels]. */
TARGET static void OF(convolve)(const rl_convolution *layer, const float *x, const float *panels, float *y)
{
    int64_t depth = layer->kernel * layer->channels, row = layer->width * layer->channels, outputs = layer->outputs;
    int64_t height = out_height(layer), width = out_width(layer), panel_floats = (layer->kernel * depth + 1) * PANEL;
    for (int64_t i = 0; i < height; i++)
        for (int64_t first = 0; first < outputs; first += PANEL) {
            const float *panel = panels + first / PANEL * panel_floats;
            OF(strips)(width, outputs - first, (rl_product){
                .runs = layer->kernel, .depth = depth, .a = x + i * layer->stride * row,
                .a_row = layer->stride * layer->channels, .a_run = row, .a_step = 1, .b = panel + PANEL,
                .b_run = depth * PANEL, .b_step = PANEL, .start = panel, .c = y + i * width * outputs + first,
                .c_row = outputs,
            });
        }
    OF(activate)(RL_RELU, height * width * outputs, y, y);
}

/* Add one image to the sums: of the biases, then [kernel, kernel, channels, outputs]. `grad` is the first pixel's, rows
 * `grad_row` apart. */
TARGET static void OF(add_image)(const rl_convolution *layer, const float *x, const float *grad, int64_t grad_row,
                                 float *sums)
{
    int64_t depth = layer->kernel * layer->channels, row = layer->width * layer->channels, outputs = layer->outputs;
    for (int64_t i = 0; i < out_height(layer); i++)
        OF(add_rows)(out_width(layer), outputs, grad + i * grad_row, outputs, sums);
    for (int64_t i = 0; i < layer->kernel; i++)
        for (int64_t first = 0; first < outputs; first += PANEL) {
            float *own = sums + outputs + i * depth * outputs + first;
            OF(strips)(depth, outputs - first, (rl_product){
                .runs = out_height(layer), .depth = out_width(layer), .a = x + i * row, .a_row = 1,
                .a_run = layer->stride * row, .a_step = layer->stride * layer->channels, .b = grad + first,
                .b_run = grad_row, .b_step = outputs, .start = own, .start_row = outputs, .c = own, .c_row = outputs,
            });
        }
}

/* The gradient of x, one image. Pixels whose row and whose column leave the same rest when divided by the stride meet the
 * same entries of the kernel: their gradients are one product. `panels`: for each pair of rests, of PANEL channels
 * each, zeros, then the entries in the order in which the product meets them. `grad` has zeros around it. */
TARGET static void OF(spread)(const rl_convolution *layer, const float *grad, int64_t grad_row, const float *panels,
                              float *x_grad, int64_t x_row)
{
    int64_t stride = layer->stride, channels = layer->channels, outputs = layer->outputs;
    for (int64_t i = 0; i < stride; i++)
        for (int64_t j = 0; j < stride; j++) {
            int64_t runs = met(layer, i), depth = met(layer, j) * outputs;
            for (int64_t first = 0; first < channels; first += PANEL, panels += (runs * depth + 1) * PANEL)
                for (int64_t y = i; y < layer->height; y += stride)
                    OF(strips)((layer->width - j + stride - 1) / stride, channels - first, (rl_product){
                        .runs = runs, .depth = depth, .a = grad + y / stride * grad_row - depth + outputs,
                        .a_row = outputs, .a_run = -grad_row, .a_step = 1, .b = panels + PANEL,
                        .b_run = depth * PANEL, .b_step = PANEL, .start = panels,
                        .c = x_grad + y * x_row + j * channels + first, .c_row = stride * channels,
                    });
        }
}

/* Take one image through the layers. Each `result` is of this image, [height, width, outputs]. */
TARGET static void OF(forward_image)(const rl_convolution *layers, int64_t num_layers, const float *x,
                                     const float *panels, float *const *results)
{
    for (int64_t i = 0; i < num_layers; i++) {
        OF(convolve)(layers + i, x, panels, results[i]);
        panels += forward_floats(layers + i, PANEL);
        x = results[i];
    }
}

/* Add one image to the gradients. `grads`: each layer's, the last one's filled, all with zeros around them. */
TARGET static void OF(backward_image)(const rl_convolution *layers, int64_t num_layers, const float *x,
                                      const float *panels, const float *const *results, float *const *grads,
                                      float *sums)
{
    for (int64_t i = num_layers - 1; i >= 0; i--) {
        const rl_convolution *layer = layers + i;
        int64_t row = out_width(layer) * layer->outputs, grad_row = padded_row(layer);
        float *grad = grads[i] + before(layer) * (grad_row + layer->outputs);
        for (int64_t y = 0; y < out_height(layer); y++)
            OF(derive)(RL_RELU, row, results[i] + y * row, grad + y * grad_row);
        float *own = sums;
        for (int64_t k = 0; k < i; k++)
            own += weight_floats(layers + k) + layers[k].outputs;
        OF(add_image)(layer, i ? results[i - 1] : x, grad, grad_row, own);
        if (i == 0)
            return;
        const float *own_panels = panels;
        for (int64_t k = 1; k < i; k++)
            own_panels += backward_floats(layers + k, PANEL);
        const rl_convolution *below = layer - 1;
        int64_t below_row = padded_row(below);
        OF(spread)(layer, grad, grad_row, own_panels, grads[i - 1] + before(below) * (below_row + below->outputs),
                   below_row);
    }
}

static int64_t OF(panel)(void)
{
    return PANEL;
}
