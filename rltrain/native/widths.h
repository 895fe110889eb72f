/* Compiles the file KERNELS once for each width of vectors, and chooses among the widths when a function is called. The
 * file finds
 *   LANES     floats of a vector
 *   VECTORS   vectors of a tile's row, so many that the sums of 6 rows stay in the registers
 *   TARGET    function attribute that permits the instructions
 *   OF(name)  a name of this width */
#include "protocol.h"

/* A product of matrices, see tiles.h. */
typedef struct {
    int64_t runs, depth;
    const float *a;
    int64_t a_row, a_run, a_step;
    const float *b;
    int64_t b_run, b_step;
    const float *start;
    int64_t start_row;
    float *c;
    int64_t c_row;
} rl_product;

#define LANES 4
#define TARGET
#define OF(name) name##_4
#ifdef __x86_64__
#define VECTORS 2
#else
#define VECTORS 4
#endif
#include KERNELS
#undef LANES
#undef VECTORS
#undef TARGET
#undef OF
#undef VEC
#undef BITS
#undef INLINE
#undef PANEL

#ifdef __x86_64__
#define LANES 8
#define VECTORS 2
#define TARGET __attribute__((target("avx2,fma")))
#define OF(name) name##_8
#include KERNELS
#undef LANES
#undef VECTORS
#undef TARGET
#undef OF
#undef VEC
#undef BITS
#undef INLINE
#undef PANEL

#define LANES 16
#define VECTORS 4
#define TARGET __attribute__((target("avx512f")))
#define OF(name) name##_16
#include KERNELS
#undef LANES
#undef VECTORS
#undef TARGET
#undef OF
#undef VEC
#undef BITS
#undef INLINE
#undef PANEL
#endif

/* Of the kernels of all widths, widest first: those of the widest that this CPU has, of `most_lanes` or fewer. */
static inline int rl_chosen_width(int64_t most_lanes)
{
#ifdef __x86_64__
    if (most_lanes >= 16 && __builtin_cpu_supports("avx512f"))
        return 0;
    return most_lanes >= 8 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 1 : 2;
#else
    return 0;
#endif
}

#ifdef __x86_64__
#define ALL_WIDTHS(KERNELS_OF) {KERNELS_OF(16), KERNELS_OF(8), KERNELS_OF(4)}
#else
#define ALL_WIDTHS(KERNELS_OF) {KERNELS_OF(4)}
#endif

/* How many threads share `parts`. */
static inline int64_t rl_threads_for(int64_t parts, int64_t num_threads)
{
    num_threads = num_threads < parts ? num_threads : parts;
    return num_threads > 1 ? num_threads : 1;
}
