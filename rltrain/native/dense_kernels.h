/* Dense layers for one width of vectors. Included by dense.c, once for each, with
 *   LANES     floats of a vector
 *   VECTORS   vectors of a tile's row, so many that the sums of 6 rows stay in the registers
 *   TARGET    function attribute that permits the instructions
 *   OF(name)  a name of this width */

#define PANEL (LANES * VECTORS)
#include "dense_vectors.h"

/* c[r, :] = start[r, :] + sum over k of a[r * a_row + k * a_step] b[k, :], for `rows` rows and `vectors` vectors. Each
 * sum goes through k in order, whatever the tile: a row's result does not depend on the rows beside it. */
INLINE void OF(tile)(int rows, int vectors, int64_t depth, const float *a, int64_t a_row, int64_t a_step,
                     const float *b, int64_t b_pitch, const float *start, int64_t start_pitch, float *c,
                     int64_t c_pitch)
{
    VEC sums[12][VECTORS];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sums[r][v] = *(const VEC *)(start + r * start_pitch + v * LANES);
    for (int64_t k = 0; k < depth; k++) {
        VEC row[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            row[v] = *(const VEC *)(b + k * b_pitch + v * LANES);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            float factor = a[r * a_row + k * a_step];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                sums[r][v] += row[v] * factor;
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            *(VEC *)(c + r * c_pitch + v * LANES) = sums[r][v];
}

#define TILE(n)                                                                                                    \
    OF(tile)(n, vectors, depth, a + r * a_row, a_row, a_step, b, b_pitch, start + r * start_pitch, start_pitch,    \
             c + r * c_pitch, c_pitch)

/* `tile` for any number of rows: 12 at once where they have few sums, so that additions need not wait for each other. */
INLINE void OF(strip)(int64_t rows, int vectors, int64_t depth, const float *a, int64_t a_row, int64_t a_step,
                      const float *b, int64_t b_pitch, const float *start, int64_t start_pitch, float *c,
                      int64_t c_pitch)
{
    int64_t r = 0;
    if (2 * vectors <= VECTORS)
        for (; r + 12 <= rows; r += 12)
            TILE(12);
    for (; r + 6 <= rows; r += 6)
        TILE(6);
    switch (rows - r) {
    case 1: TILE(1); break;
    case 2: TILE(2); break;
    case 3: TILE(3); break;
    case 4: TILE(4); break;
    case 5: TILE(5); break;
    }
}

#define STRIP(n)                                                                                                   \
    OF(strip)(rows, n, depth, a, a_row, a_step, b, b_pitch, start, start_pitch, c, c_pitch)

INLINE void OF(strips)(int64_t rows, int64_t vectors, int64_t depth, const float *a, int64_t a_row, int64_t a_step,
                       const float *b, int64_t b_pitch, const float *start, int64_t start_pitch, float *c,
                       int64_t c_pitch)
{
    switch (vectors) {
    case 1: STRIP(1); break;
#if VECTORS >= 2
    case 2: STRIP(2); break;
#endif
#if VECTORS >= 4
    case 3: STRIP(3); break;
    case 4: STRIP(4); break;
#endif
    }
}

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
    for (int64_t first = 0; first < c_pitch; first += PANEL, panels += (depth + 1) * PANEL) {
        int64_t vectors = (c_pitch - first) / LANES;
        OF(strips)(rows, vectors < VECTORS ? vectors : VECTORS, depth, a, a_pitch, 1, panels + PANEL, PANEL, panels, 0,
                   c + first, c_pitch);
    }
}

/* sums[m, n] += sum over rows of a[row, m] b[row, n]. */
TARGET static void OF(add_outer)(int64_t rows, int64_t num_m, int64_t num_n, const float *a, int64_t a_pitch,
                                 const float *b, int64_t b_pitch, float *sums, int64_t sums_pitch)
{
    for (int64_t first = 0; first < num_n; first += PANEL) {
        int64_t vectors = (num_n - first + LANES - 1) / LANES;
        OF(strips)(num_m, vectors < VECTORS ? vectors : VECTORS, rows, a, 1, a_pitch, b + first, b_pitch,
                   sums + first, sums_pitch, sums + first, sums_pitch);
    }
}

TARGET static void OF(add_rows)(int64_t rows, int64_t columns, const float *b, int64_t pitch, float *sums)
{
    for (int64_t n = 0; n < columns; n += LANES) {
        VEC sum = *(VEC *)(sums + n);
        for (int64_t r = 0; r < rows; r++)
            sum += *(const VEC *)(b + r * pitch + n);
        *(VEC *)(sums + n) = sum;
    }
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

#undef VEC
#undef BITS
#undef INLINE
#undef PANEL
#undef TILE
#undef STRIP
