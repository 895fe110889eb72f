/* Convolutions without padding, each followed by a ReLU, and their gradients; float32.
 *
 * An image goes through all layers before the next one, so that what lies between two layers stays in the cache of its
 * core; nothing is copied into columns. Threads take their share of the images. Gradients are summed over runs of images,
 * as one long sum of float32 would lose digits, then over runs and threads, in order. Outputs are a multiple of 16. */
#include "protocol.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { RUN_IMAGES = 16, LINE_FLOATS = 16 };

static int64_t out_height(const rl_convolution *layer)
{
    return (layer->height - layer->kernel) / layer->stride + 1;
}

static int64_t out_width(const rl_convolution *layer)
{
    return (layer->width - layer->kernel) / layer->stride + 1;
}

static int64_t out_floats(const rl_convolution *layer)
{
    return out_height(layer) * out_width(layer) * layer->outputs;
}

static int64_t weight_floats(const rl_convolution *layer)
{
    return layer->kernel * layer->kernel * layer->channels * layer->outputs;
}

/* Entries of one row of the kernel that meet a pixel which leaves `rest` when divided by the stride. */
static int64_t met(const rl_convolution *layer, int64_t rest)
{
    return (layer->kernel - rest + layer->stride - 1) / layer->stride;
}

/* Zeros around a layer's gradient, in pixels: before its first row and column, and in all. */
static int64_t before(const rl_convolution *layer)
{
    return met(layer, 0) - 1;
}

static int64_t padded(const rl_convolution *layer, int64_t size)
{
    return before(layer) + (size - 1) / layer->stride + 1;
}

static int64_t padded_row(const rl_convolution *layer)
{
    return padded(layer, layer->width) * layer->outputs;
}

static int64_t padded_floats(const rl_convolution *layer)
{
    return padded(layer, layer->height) * padded_row(layer);
}

static int64_t panels_of(int64_t columns, int64_t panel)
{
    return (columns + panel - 1) / panel * panel;
}

static int64_t forward_floats(const rl_convolution *layer, int64_t panel)
{
    return panels_of(layer->outputs, panel) * (layer->kernel * layer->kernel * layer->channels + 1);
}

static int64_t backward_floats(const rl_convolution *layer, int64_t panel)
{
    return panels_of(layer->channels, panel) *
           (layer->kernel * layer->kernel * layer->outputs + layer->stride * layer->stride);
}

#define KERNELS "conv_kernels.h"
#include "widths.h"

typedef struct {
    int64_t (*panel)(void);
    void (*forward_image)(const rl_convolution *, int64_t, const float *, const float *, float *const *);
    void (*backward_image)(const rl_convolution *, int64_t, const float *, const float *, const float *const *,
                           float *const *, float *);
} kernels;

#define KERNELS_OF(n) {panel_##n, forward_image_##n, backward_image_##n}

static const kernels all_kernels[] = ALL_WIDTHS(KERNELS_OF);

static const float *weight_at(const rl_convolution *layer, int64_t output, int64_t y, int64_t x)
{
    return layer->weight + (output * layer->channels * layer->kernel + y) * layer->kernel + x;
}

/* See `convolve`. */
static void pack_forward(const rl_convolution *layer, int64_t panel, float *to)
{
    int64_t kernel = layer->kernel, area = kernel * kernel;
    memset(to, 0, (uint64_t)forward_floats(layer, panel) * sizeof(float));
    for (int64_t first = 0; first < layer->outputs; first += panel, to += (area * layer->channels + 1) * panel)
        for (int64_t n = 0; n < panel && first + n < layer->outputs; n++) {
            to[n] = layer->bias[first + n];
            for (int64_t at = 0; at < area; at++)
                for (int64_t c = 0; c < layer->channels; c++)
                    to[(at * layer->channels + c + 1) * panel + n] =
                        weight_at(layer, first + n, 0, 0)[c * area + at];
        }
}

/* See `spread`. */
static void pack_backward(const rl_convolution *layer, int64_t panel, float *to)
{
    int64_t stride = layer->stride, area = layer->kernel * layer->kernel;
    memset(to, 0, (uint64_t)backward_floats(layer, panel) * sizeof(float));
    for (int64_t i = 0; i < stride; i++)
        for (int64_t j = 0; j < stride; j++)
            for (int64_t first = 0; first < layer->channels; first += panel) {
                to += panel;
                for (int64_t y = 0; y < met(layer, i); y++)
                    for (int64_t x = met(layer, j) - 1; x >= 0; x--)
                        for (int64_t o = 0; o < layer->outputs; o++, to += panel)
                            for (int64_t n = 0; n < panel && first + n < layer->channels; n++)
                                to[n] = weight_at(layer, o, i + y * stride, j + x * stride)[(first + n) * area];
            }
}

/* One image, as [height, width, channels] of float32. */
static void load(const rl_images *images, const rl_convolution *layer, int64_t image, float *to)
{
    int64_t channels = layer->channels;
    for (int64_t y = 0; y < layer->height; y++)
        for (int64_t c = 0; c < channels; c++) {
            int64_t at = image * images->image_step + y * images->row_step + c * images->channel_step;
            float *own = to + y * layer->width * channels + c;
            if (images->bytes)
                for (int64_t x = 0; x < layer->width; x++)
                    own[x * channels] = images->scale * (float)images->bytes[at + x * images->column_step];
            else
                for (int64_t x = 0; x < layer->width; x++)
                    own[x * channels] = images->scale * images->floats[at + x * images->column_step];
        }
}

/* [height, width, outputs] into [outputs, height, width], and back into rows `to_row` apart. */
static void to_planes(const rl_convolution *layer, const float *from, float *planes)
{
    int64_t pixels = out_height(layer) * out_width(layer), outputs = layer->outputs;
    for (int64_t low = 0; low < outputs; low += LINE_FLOATS)
        for (int64_t pixel = 0; pixel < pixels; pixel++)
            for (int64_t o = low; o < low + LINE_FLOATS; o++)
                planes[o * pixels + pixel] = from[pixel * outputs + o];
}

static void from_planes(const rl_convolution *layer, const float *planes, float *to, int64_t to_row)
{
    int64_t height = out_height(layer), width = out_width(layer), outputs = layer->outputs;
    for (int64_t y = 0; y < height; y++)
        for (int64_t low = 0; low < outputs; low += LINE_FLOATS)
            for (int64_t x = 0; x < width; x++)
                for (int64_t o = low; o < low + LINE_FLOATS; o++)
                    to[y * to_row + x * outputs + o] = planes[o * height * width + y * width + x];
}

static int are_possible(const rl_convolution *layers, int64_t num_layers)
{
    for (int64_t i = 0; i < num_layers; i++) {
        const rl_convolution *layer = layers + i;
        if (layer->kernel < 1 || layer->stride < 1 || layer->stride > layer->kernel || layer->channels < 1 ||
            layer->outputs < 1 || layer->outputs % LINE_FLOATS || layer->height < layer->kernel ||
            layer->width < layer->kernel)
            return 0;
        if (i && (layer->channels != layer[-1].outputs || layer->height != out_height(layer - 1) ||
                  layer->width != out_width(layer - 1)))
            return 0;
    }
    return num_layers >= 1 && num_layers <= RL_MOST_CONVOLUTIONS;
}

static float *take(int64_t floats)
{
    return aligned_alloc(64, (uint64_t)(floats + LINE_FLOATS) / LINE_FLOATS * LINE_FLOATS * sizeof(float));
}

static int64_t in_lines(int64_t floats)
{
    return (floats + LINE_FLOATS - 1) / LINE_FLOATS * LINE_FLOATS;
}

/* Images through the layers: the last one's output is [images, outputs, height, width], each layer's `result`, where it
 * is not NULL, [images, height, width, outputs]. O(images * multiplications). Returns -EINVAL for layers that do not
 * follow from each other, a stride wider than its kernel or outputs that are no multiple of 16, -ENOMEM. */
int rl_conv_forward(const rl_convolution *layers, int64_t num_layers, const rl_images *images, float *output,
                    int64_t num_threads, int64_t most_lanes)
{
    if (!are_possible(layers, num_layers))
        return -EINVAL;
    const kernels *kernel = all_kernels + rl_chosen_width(most_lanes);
    int64_t threads = rl_threads_for(images->count, num_threads), packed_floats = 0;
    int64_t of_image = in_lines(layers->height * layers->width * layers->channels), thread_floats = of_image;
    for (int64_t i = 0; i < num_layers; i++) {
        packed_floats += forward_floats(layers + i, kernel->panel());
        thread_floats += out_floats(layers + i);
    }
    packed_floats = in_lines(packed_floats);
    float *packed = take(packed_floats + threads * thread_floats);
    if (!packed)
        return -ENOMEM;
    float *to = packed;
    for (int64_t i = 0; i < num_layers; to += forward_floats(layers + i, kernel->panel()), i++)
        pack_forward(layers + i, kernel->panel(), to);
#pragma omp parallel for schedule(static, 1) num_threads((int)threads) if (threads > 1)
    for (int64_t thread = 0; thread < threads; thread++) {
        float *x = packed + packed_floats + thread * thread_floats;
        const rl_convolution *last = layers + num_layers - 1;
        for (int64_t image = thread * images->count / threads; image < (thread + 1) * images->count / threads; image++) {
            float *results[RL_MOST_CONVOLUTIONS], *own = x + of_image;
            for (int64_t i = 0; i < num_layers; own += out_floats(layers + i), i++)
                results[i] = layers[i].result ? layers[i].result + image * out_floats(layers + i) : own;
            load(images, layers, image, x);
            kernel->forward_image(layers, num_layers, x, packed, results);
            to_planes(last, results[num_layers - 1], output + image * out_floats(last));
        }
    }
    free(packed);
    return 0;
}

/* Write each layer's gradients, summed over all threads. */
static void write_gradients(const rl_convolution *layers, int64_t num_layers, const float *sums, int64_t threads,
                            int64_t thread_floats)
{
    for (int64_t i = 0; i < num_layers; sums += weight_floats(layers + i) + layers[i].outputs, i++) {
        const rl_convolution *layer = layers + i;
        int64_t outputs = layer->outputs, area = layer->kernel * layer->kernel;
        for (int64_t o = 0; o < outputs; o++) {
            float total = 0;
            for (int64_t t = 0; t < threads; t++)
                total += sums[t * thread_floats + o];
            layer->bias_gradient[o] = total;
            for (int64_t c = 0; c < layer->channels; c++)
                for (int64_t at = 0; at < area; at++) {
                    total = 0;
                    for (int64_t t = 0; t < threads; t++)
                        total += sums[t * thread_floats + outputs + (at * layer->channels + c) * outputs + o];
                    layer->weight_gradient[(o * layer->channels + c) * area + at] = total;
                }
        }
    }
}

/* The gradients of the layers' weights and biases, of what rl_conv_forward kept, given that of its output. Each layer
 * has its `result`. O(images * multiplications). Returns as that. */
int rl_conv_backward(const rl_convolution *layers, int64_t num_layers, const rl_images *images,
                     const float *output_gradient, int64_t num_threads, int64_t most_lanes)
{
    if (!are_possible(layers, num_layers))
        return -EINVAL;
    const kernels *kernel = all_kernels + rl_chosen_width(most_lanes);
    int64_t threads = rl_threads_for(images->count, num_threads), packed_floats = 0, of_layers = 0, of_grads = 0;
    int64_t of_image = in_lines(layers->height * layers->width * layers->channels);
    for (int64_t i = 0; i < num_layers; i++) {
        packed_floats += i ? backward_floats(layers + i, kernel->panel()) : 0;
        of_layers += weight_floats(layers + i) + layers[i].outputs;
        of_grads += padded_floats(layers + i);
    }
    packed_floats = in_lines(packed_floats);
    int64_t thread_floats = 2 * of_layers + of_image + of_grads;
    float *packed = take(packed_floats + threads * thread_floats);
    if (!packed)
        return -ENOMEM;
    float *to = packed;
    for (int64_t i = 1; i < num_layers; to += backward_floats(layers + i, kernel->panel()), i++)
        pack_backward(layers + i, kernel->panel(), to);
#pragma omp parallel for schedule(static, 1) num_threads((int)threads) if (threads > 1)
    for (int64_t thread = 0; thread < threads; thread++) {
        float *totals = packed + packed_floats + thread * thread_floats, *sums = totals + of_layers;
        float *x = sums + of_layers, *grads[RL_MOST_CONVOLUTIONS], *own = x + of_image;
        for (int64_t i = 0; i < num_layers; own += padded_floats(layers + i), i++)
            grads[i] = own;
        memset(totals, 0, (uint64_t)thread_floats * sizeof(float));
        const rl_convolution *last = layers + num_layers - 1;
        float *last_grad = grads[num_layers - 1] + before(last) * (padded_row(last) + last->outputs);
        int64_t begin = thread * images->count / threads, end = (thread + 1) * images->count / threads;
        for (int64_t image = begin; image < end; image++) {
            const float *results[RL_MOST_CONVOLUTIONS];
            for (int64_t i = 0; i < num_layers; i++)
                results[i] = layers[i].result + image * out_floats(layers + i);
            load(images, layers, image, x);
            from_planes(last, output_gradient + image * out_floats(last), last_grad, padded_row(last));
            kernel->backward_image(layers, num_layers, x, packed, results, grads, sums);
            if ((image - begin + 1) % RUN_IMAGES == 0 || image + 1 == end) {
                for (int64_t i = 0; i < of_layers; i++)
                    totals[i] += sums[i];
                memset(sums, 0, (uint64_t)of_layers * sizeof(float));
            }
        }
    }
    write_gradients(layers, num_layers, packed + packed_floats, threads, thread_floats);
    free(packed);
    return 0;
}
