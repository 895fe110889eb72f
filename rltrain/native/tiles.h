/* Products of matrices in tiles of sums that stay in the registers, for one width of vectors. Included by the files of
 * kernels that widths.h compiles, once for each width. */

#define PANEL (LANES * VECTORS)
#include "vectors.h"

/* Add to tile rows r and vectors v of p.start the sum over j < p.runs and k < p.depth of
 *   p.a[r * p.a_row + j * p.a_run + k * p.a_step]  p.b[j * p.b_run + k * p.b_step + v],
 * into p.c. Each sum goes through j and k in order, whatever the tile: a row's result does not depend on the rows
 * beside it. */
INLINE void OF(tile)(int rows, int vectors, rl_product p)
{
    VEC sums[12][VECTORS];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sums[r][v] = *(const VEC *)(p.start + r * p.start_row + v * LANES);
    for (int64_t j = 0; j < p.runs; j++)
        for (int64_t k = 0; k < p.depth; k++) {
            VEC row[VECTORS];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                row[v] = *(const VEC *)(p.b + j * p.b_run + k * p.b_step + v * LANES);
#pragma GCC unroll 12
            for (int r = 0; r < rows; r++) {
                float factor = p.a[r * p.a_row + j * p.a_run + k * p.a_step];
#pragma GCC unroll 4
                for (int v = 0; v < vectors; v++)
                    sums[r][v] += row[v] * factor;
            }
        }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            *(VEC *)(p.c + r * p.c_row + v * LANES) = sums[r][v];
}

/* The tile, and what is below its rows. */
INLINE rl_product OF(tile_of)(int rows, int vectors, rl_product p)
{
    OF(tile)(rows, vectors, p);
    p.a += rows * p.a_row;
    p.start += rows * p.start_row;
    p.c += rows * p.c_row;
    return p;
}

/* Any number of rows: 12 at once where they have few sums, so that additions need not wait for each other. */
INLINE void OF(strip)(int64_t rows, int vectors, rl_product p)
{
    if (2 * vectors <= VECTORS)
        for (; rows >= 12; rows -= 12)
            p = OF(tile_of)(12, vectors, p);
    for (; rows >= 6; rows -= 6)
        p = OF(tile_of)(6, vectors, p);
    switch (rows) {
    case 1: OF(tile)(1, vectors, p); break;
    case 2: OF(tile)(2, vectors, p); break;
    case 3: OF(tile)(3, vectors, p); break;
    case 4: OF(tile)(4, vectors, p); break;
    case 5: OF(tile)(5, vectors, p); break;
    }
}

/* Any number of rows of a panel's width, or of so many columns as are left. */
INLINE void OF(strips)(int64_t rows, int64_t columns, rl_product p)
{
    switch (columns < PANEL ? (columns + LANES - 1) / LANES : VECTORS) {
    case 1: OF(strip)(rows, 1, p); break;
#if VECTORS >= 2
    case 2: OF(strip)(rows, 2, p); break;
#endif
#if VECTORS >= 4
    case 3: OF(strip)(rows, 3, p); break;
    case 4: OF(strip)(rows, 4, p); break;
#endif
    }
}

/* sums[n] += the sum over rows of b[row, n]. */
TARGET static void OF(add_rows)(int64_t rows, int64_t columns, const float *b, int64_t pitch, float *sums)
{
    for (int64_t n = 0; n < columns; n += LANES) {
        VEC sum = *(VEC *)(sums + n);
        for (int64_t r = 0; r < rows; r++)
            sum += *(const VEC *)(b + r * pitch + n);
        *(VEC *)(sums + n) = sum;
    }
}
