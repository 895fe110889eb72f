/* Dense layers for one width of vectors: what dense.c has widths.h compile. */

#include "tiles.h"

/* Write [depth, columns] into panels of PANEL columns, each with a first row of its own: `start`, or zeros for NULL.
 * The entry at (k, n) is matrix[k * k_step + n * n_step], one of the two being 1. What is beyond the columns, up to the pitch, becomes 0. */
TARGET static void OF(pack)(const float *matrix, int64_t depth, int64_t k_step, int64_t columns, int64_t n_step,
                            const float *start, float *panels)
{
    for (int64_t first = 0; first < rl_dense_pitch(columns); first += PANEL, panels += (depth + 1) * PANEL) {
        int64_t here = columns - first < PANEL ? columns - first : PANEL;
        here = here > 0 ? here : 0;
        if (here < PANEL || !start)
            memset(panels, 0, (uint64_t)((depth + 1) * PANEL) * sizeof(float));
        if (start && here)
            memcpy(panels, start + first, (uint64_t)here * sizeof(float));
        if (n_step == 1) {
            for (int64_t k = 0; k < depth; k++)
                memcpy(panels + (k + 1) * PANEL, matrix + k * k_step + first, (uint64_t)here * sizeof(float));
            continue;
        }
        for (int64_t low = 0; low < depth; low += LINE_FLOATS) { /* transposed, by the cache lines of the source */
            int64_t high = low + LINE_FLOATS < depth ? low + LINE_FLOATS : depth;
            for (int64_t n = 0; n < here; n++)
                for (int64_t k = low; k < high; k++)
                    panels[(k + 1) * PANEL + n] = matrix[k + (first + n) * n_step];
        }
    }
}

static int64_t OF(packed_floats)(int64_t depth, int64_t columns)
{
    return (rl_dense_pitch(columns) + PANEL - 1) / PANEL * PANEL * (depth + 1);
}

/* c[r, n] = start[n] + sum over k of a[r, k] b[k, n], `panels` having start and b; up to the pitch of c. */
TARGET static void OF(multiply)(int64_t rows, int64_t depth, const float *a, int64_t a_pitch, const float *panels,
                                float *c, int64_t c_pitch)
{
    for (int64_t first = 0; first < c_pitch; first += PANEL, panels += (depth + 1) * PANEL)
        OF(strips)(rows, c_pitch - first, (rl_product){
            .runs = 1, .depth = depth, .a = a, .a_row = a_pitch, .a_step = 1, .b = panels + PANEL, .b_step = PANEL,
            .start = panels, .c = c + first, .c_row = c_pitch,
        });
}

/* sums[m, n] += sum over rows of a[row, m] b[row, n]. */
TARGET static void OF(add_outer)(int64_t rows, int64_t num_m, int64_t num_n, const float *a, int64_t a_pitch,
                                 const float *b, int64_t b_pitch, float *sums, int64_t sums_pitch)
{
    for (int64_t first = 0; first < num_n; first += PANEL)
        OF(strips)(num_m, num_n - first, (rl_product){
            .runs = 1, .depth = rows, .a = a, .a_row = 1, .a_step = a_pitch, .b = b + first, .b_step = b_pitch,
            .start = sums + first, .start_row = sums_pitch, .c = sums + first, .c_row = sums_pitch,
        });
}

static int64_t OF(forward_floats)(const rl_layer *layers, int64_t num_layers)
{
    int64_t total = 0;
    for (int64_t i = 0; i < num_layers; i++)
        total += OF(packed_floats)(layers[i].inputs, layers[i].outputs);
    return total;
}

TARGET static void OF(pack_forward)(const rl_layer *layers, int64_t num_layers, float *packed)
{
    for (int64_t i = 0; i < num_layers; i++) {
        const rl_layer *layer = layers + i;
        OF(pack)(layer->weight, layer->inputs, 1, layer->outputs, layer->inputs, layer->bias, packed);
        packed += OF(packed_floats)(layer->inputs, layer->outputs);
    }
}

/* Take a block of rows, the first of which is row `first` of all, through the layers. */
TARGET static void OF(forward_block)(const rl_layer *layers, int64_t num_layers, const float *x, int64_t x_pitch,
                                     int64_t first, int64_t rows, const float *packed, float *scratch,
                                     int64_t scratch_floats)
{
    const float *a = x + first * x_pitch;
    int64_t a_pitch = x_pitch;
    for (int64_t i = 0; i < num_layers; i++) {
        const rl_layer *layer = layers + i;
        int64_t pitch = rl_dense_pitch(layer->outputs);
        int is_last = i == num_layers - 1;
        float *y = layer->result && !is_last ? layer->result + first * pitch : scratch + (i & 1) * scratch_floats;
        float *z = layer->sums ? layer->sums + first * pitch : y;
        OF(multiply)(rows, layer->inputs, a, a_pitch, packed, z, pitch);
        OF(activate)(layer->activation, rows * pitch, z, y);
        if (is_last)
            narrow(y, rows, layer->outputs, layer->result + first * layer->outputs);
        packed += OF(packed_floats)(layer->inputs, layer->outputs);
        a = y;
        a_pitch = pitch;
    }
}

static int64_t OF(backward_floats)(const rl_layer *layers, int64_t num_layers)
{
    int64_t total = 0;
    for (int64_t i = 0; i < num_layers; i++)
        total += OF(packed_floats)(layers[i].outputs, layers[i].inputs);
    return total;
}

TARGET static void OF(pack_backward)(const rl_layer *layers, int64_t num_layers, float *packed)
{
    for (int64_t i = 0; i < num_layers; i++) {
        const rl_layer *layer = layers + i;
        OF(pack)(layer->weight, layer->outputs, layer->inputs, layer->inputs, 1, NULL, packed);
        packed += OF(packed_floats)(layer->outputs, layer->inputs);
    }
}

/* Add a block of rows to the gradients of `sums`, and write the rows of the input's gradient where it is wanted. */
TARGET static void OF(backward_block)(const rl_layer *layers, int64_t num_layers, const float *x, int64_t x_pitch,
                                      int64_t first, int64_t rows, const float *output_gradient,
                                      float *input_gradient, const float *packed, float *sums, float *scratch,
                                      int64_t scratch_floats)
{
    const rl_layer *layer = layers + num_layers - 1;
    int64_t pitch = rl_dense_pitch(layer->outputs);
    float *grad = scratch, *next = scratch + scratch_floats, *kept = next;
    for (int64_t i = 0; i < num_layers; i++) {
        packed += OF(packed_floats)(layers[i].outputs, layers[i].inputs);
        sums += sums_floats(layers, i);
    }
    widen(output_gradient + first * layer->outputs, rows, layer->outputs, grad);
    if (layer->activation != RL_NO_ACTIVATION && !layer->sums)
        widen(layer->result + first * layer->outputs, rows, layer->outputs, kept);
    OF(derive)(layer->activation, rows * pitch, layer->sums ? layer->sums + first * pitch : kept, grad);
    for (int64_t i = num_layers - 1; i >= 0; i--) {
        layer = layers + i;
        int64_t inputs = layer->inputs, outputs = layer->outputs, in_pitch = rl_dense_pitch(inputs);
        pitch = rl_dense_pitch(outputs);
        sums -= sums_floats(layers, i);
        if (layer->weight_gradient) {
            OF(add_rows)(rows, outputs, grad, pitch, sums);
            if (is_transposed(layers, i))
                OF(add_outer)(rows, inputs, outputs, i ? layers[i - 1].result + first * in_pitch : x + first * x_pitch,
                              i ? in_pitch : x_pitch, grad, pitch, sums + pitch, pitch);
            else
                OF(add_outer)(rows, outputs, inputs, grad, pitch, layers[i - 1].result + first * in_pitch, in_pitch,
                              sums + pitch, in_pitch);
        }
        if (i == 0 && !input_gradient)
            return;
        packed -= OF(packed_floats)(outputs, inputs);
        OF(multiply)(rows, outputs, grad, pitch, packed, next, in_pitch);
        if (i > 0)
            OF(derive)(layers[i - 1].activation, rows * in_pitch,
                       (layers[i - 1].sums ? layers[i - 1].sums : layers[i - 1].result) + first * in_pitch, next);
        float *used = grad;
        grad = next;
        next = used;
    }
    narrow(grad, rows, layers[0].inputs, input_gradient + first * layers[0].inputs);
}
