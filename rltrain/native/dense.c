/* Fully connected layers and their gradients (the chain rule; float32, row-major), for narrow layers and many rows.
 *
 * A block of rows goes through all layers before the next one, so that what lies between two layers stays in the
 * first cache. Rows of results between layers are padded to a pitch of whole cache lines. Weights are packed into
 * panels as wide as a tile of sums in the registers. Threads take their share of the blocks; gradients are summed over
 * runs of blocks, as one long sum of float32 would lose digits, then over runs and threads, in order. */
#include "protocol.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_ROWS = 96, RUN_BLOCKS = 32, LINE_FLOATS = 16 };

/* Floats from one row to the next, for rows of `width`. */
int64_t rl_dense_pitch(int64_t width)
{
    return (width + LINE_FLOATS - 1) / LINE_FLOATS * LINE_FLOATS;
}

/* Whether the sums of the weight's gradient are [inputs, outputs]: the wider side goes across the vectors, but a caller's
 * rows, which need not be padded, never do. */
static int is_transposed(const rl_layer *layers, int64_t i)
{
    return i == 0 || layers[i].inputs < layers[i].outputs;
}

/* The sums of a layer's gradients: first the bias. */
static int64_t sums_floats(const rl_layer *layers, int64_t i)
{
    int64_t inputs = layers[i].inputs, outputs = layers[i].outputs;
    return rl_dense_pitch(outputs) + (is_transposed(layers, i) ? inputs * rl_dense_pitch(outputs)
                                                                : outputs * rl_dense_pitch(inputs));
}

/* Rows of `width` to rows of its pitch, with zeros behind. */
static void widen(const float *from, int64_t rows, int64_t width, float *to)
{
    int64_t pitch = rl_dense_pitch(width);
    for (int64_t r = 0; r < rows; r++) {
        memcpy(to + r * pitch, from + r * width, (uint64_t)width * sizeof(float));
        memset(to + r * pitch + width, 0, (uint64_t)(pitch - width) * sizeof(float));
    }
}

static void narrow(const float *from, int64_t rows, int64_t width, float *to)
{
    int64_t pitch = rl_dense_pitch(width);
    for (int64_t r = 0; r < rows; r++)
        memcpy(to + r * width, from + r * pitch, (uint64_t)width * sizeof(float));
}

#define KERNELS "dense_kernels.h"
#include "widths.h"

typedef struct {
    int64_t (*forward_floats)(const rl_layer *, int64_t);
    void (*pack_forward)(const rl_layer *, int64_t, float *);
    void (*forward_block)(const rl_layer *, int64_t, const float *, int64_t, int64_t, int64_t, const float *, float *,
                          int64_t);
    int64_t (*backward_floats)(const rl_layer *, int64_t);
    void (*pack_backward)(const rl_layer *, int64_t, float *);
    void (*backward_block)(const rl_layer *, int64_t, const float *, int64_t, int64_t, int64_t, const float *, float *,
                           const float *, float *, float *, int64_t);
} kernels;

#define KERNELS_OF(n) \
    {forward_floats_##n, pack_forward_##n, forward_block_##n, backward_floats_##n, pack_backward_##n, \
     backward_block_##n}

static const kernels all_kernels[] = ALL_WIDTHS(KERNELS_OF);

static int64_t widest_pitch(const rl_layer *layers, int64_t num_layers)
{
    int64_t widest = 0;
    for (int64_t i = 0; i < num_layers; i++) {
        int64_t wider = layers[i].inputs > layers[i].outputs ? layers[i].inputs : layers[i].outputs;
        widest = wider > widest ? wider : widest;
    }
    return rl_dense_pitch(widest);
}

static int64_t blocks_of(int64_t rows)
{
    return (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
}

/* Rows of x through the layers: the last one's `result` is [rows, outputs], the others' and `sums` [rows, pitch].
 * `result` may be NULL where only the last one's is wanted. O(rows * weights). Returns -EINVAL for no layers or
 * a negative number of rows, -ENOMEM. */
int rl_dense_forward(const rl_layer *layers, int64_t num_layers, const float *x, int64_t x_pitch, int64_t rows,
                     int64_t num_threads, int64_t most_lanes)
{
    if (num_layers < 1 || rows < 0)
        return -EINVAL;
    const kernels *kernel = all_kernels + rl_chosen_width(most_lanes);
    int64_t blocks = blocks_of(rows), threads = rl_threads_for(blocks, num_threads);
    int64_t packed_floats = kernel->forward_floats(layers, num_layers);
    int64_t scratch_floats = BLOCK_ROWS * widest_pitch(layers, num_layers);
    float *packed = aligned_alloc(64, (uint64_t)(packed_floats + threads * 2 * scratch_floats + 64) / 16 * 64);
    if (!packed)
        return -ENOMEM;
    float *scratch = packed + rl_dense_pitch(packed_floats);
    kernel->pack_forward(layers, num_layers, packed);
#pragma omp parallel for schedule(static, 1) num_threads((int)threads) if (threads > 1)
    for (int64_t thread = 0; thread < threads; thread++)
        for (int64_t block = thread * blocks / threads; block < (thread + 1) * blocks / threads; block++) {
            int64_t first = block * BLOCK_ROWS;
            kernel->forward_block(layers, num_layers, x, x_pitch, first,
                                  rows - first < BLOCK_ROWS ? rows - first : BLOCK_ROWS, packed,
                                  scratch + thread * 2 * scratch_floats, scratch_floats);
        }
    free(packed);
    return 0;
}

/* Write each layer's gradients, summed over all threads. */
static void write_gradients(const rl_layer *layers, int64_t num_layers, const float *sums, int64_t threads,
                            int64_t thread_floats)
{
    for (int64_t i = 0; i < num_layers; sums += sums_floats(layers, i), i++) {
        const rl_layer *layer = layers + i;
        if (!layer->weight_gradient)
            continue;
        int64_t pitch = rl_dense_pitch(layer->outputs), in_pitch = rl_dense_pitch(layer->inputs);
        int64_t o_step = is_transposed(layers, i) ? 1 : in_pitch, n_step = is_transposed(layers, i) ? pitch : 1;
        for (int64_t o = 0; o < layer->outputs; o++) {
            float total = 0;
            for (int64_t t = 0; t < threads; t++)
                total += sums[t * thread_floats + o];
            layer->bias_gradient[o] = total;
            for (int64_t n = 0; n < layer->inputs; n++) {
                total = 0;
                for (int64_t t = 0; t < threads; t++)
                    total += sums[t * thread_floats + pitch + o * o_step + n * n_step];
                layer->weight_gradient[o * layer->inputs + n] = total;
            }
        }
    }
}

/* The gradients of the layers' weights and biases, where they are not NULL, and of x, where it is not NULL, of what
 * rl_dense_forward kept, given that of the last result, [rows, outputs]. O(rows * weights). Returns as that. */
int rl_dense_backward(const rl_layer *layers, int64_t num_layers, const float *x, int64_t x_pitch, int64_t rows,
                      const float *output_gradient, float *input_gradient, int64_t num_threads, int64_t most_lanes)
{
    if (num_layers < 1 || rows < 0)
        return -EINVAL;
    const kernels *kernel = all_kernels + rl_chosen_width(most_lanes);
    int64_t blocks = blocks_of(rows), threads = rl_threads_for(blocks, num_threads);
    int64_t packed_floats = rl_dense_pitch(kernel->backward_floats(layers, num_layers));
    int64_t scratch_floats = BLOCK_ROWS * widest_pitch(layers, num_layers), of_layers = 0;
    for (int64_t i = 0; i < num_layers; i++)
        of_layers += sums_floats(layers, i);
    int64_t thread_floats = 2 * of_layers + 2 * scratch_floats;
    float *packed = aligned_alloc(64, (uint64_t)(packed_floats + threads * thread_floats) * sizeof(float));
    if (!packed)
        return -ENOMEM;
    float *own = packed + packed_floats;
    kernel->pack_backward(layers, num_layers, packed);
#pragma omp parallel for schedule(static, 1) num_threads((int)threads) if (threads > 1)
    for (int64_t thread = 0; thread < threads; thread++) {
        float *totals = own + thread * thread_floats, *sums = totals + of_layers;
        int64_t begin = thread * blocks / threads, end = (thread + 1) * blocks / threads;
        memset(totals, 0, 2 * (uint64_t)of_layers * sizeof(float));
        for (int64_t block = begin; block < end; block++) {
            int64_t first = block * BLOCK_ROWS;
            kernel->backward_block(layers, num_layers, x, x_pitch, first,
                                   rows - first < BLOCK_ROWS ? rows - first : BLOCK_ROWS, output_gradient,
                                   input_gradient, packed, sums, sums + of_layers, scratch_floats);
            if ((block - begin + 1) % RUN_BLOCKS == 0 || block + 1 == end) {
                for (int64_t i = 0; i < of_layers; i++)
                    totals[i] += sums[i];
                memset(sums, 0, (uint64_t)of_layers * sizeof(float));
            }
        }
    }
    write_gradients(layers, num_layers, own, threads, thread_floats);
    free(packed);
    return 0;
}
