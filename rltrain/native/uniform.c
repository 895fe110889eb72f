/* Counter-based uniforms: Philox4x32 with 10 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
 * SC 2011). Key: the seed. Counter: env step (64 bits), env index (32 bits), block of four components (32 bits). */
#include "protocol.h"

#include <errno.h>

static void philox(uint32_t counter[4], uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t product0 = (uint64_t)0xD2511F53u * counter[0];
        uint64_t product1 = (uint64_t)0xCD9E8D57u * counter[2];
        uint32_t next0 = (uint32_t)(product1 >> 32) ^ counter[1] ^ key0;
        uint32_t next2 = (uint32_t)(product0 >> 32) ^ counter[3] ^ key1;
        counter[0] = next0;
        counter[1] = (uint32_t)product1;
        counter[2] = next2;
        counter[3] = (uint32_t)product0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

/* out[row, component] in (0, 1). O(rows * components). Returns -EINVAL, nothing written, for an env index beyond 32
 * bits or a negative step. */
int rl_uniform(uint64_t seed, const int64_t *env_indices, const int64_t *env_steps, int64_t num_rows,
               int64_t num_components, float *out)
{
    for (int64_t row = 0; row < num_rows; row++)
        if (env_indices[row] < 0 || env_indices[row] > UINT32_MAX || env_steps[row] < 0)
            return -EINVAL;
    for (int64_t row = 0; row < num_rows; row++) {
        for (int64_t first = 0; first < num_components; first += 4) {
            uint64_t step = (uint64_t)env_steps[row];
            uint32_t bits[4] = {(uint32_t)step, (uint32_t)(step >> 32), (uint32_t)env_indices[row],
                                (uint32_t)(first / 4)};
            philox(bits, (uint32_t)seed, (uint32_t)(seed >> 32));
            for (int64_t i = 0; i < 4 && first + i < num_components; i++)
                /* 23 bits and a half: exact in float32, so neither end of the interval is ever rounded to. */
                out[row * num_components + first + i] = ((float)(bits[i] >> 9) + 0.5f) * 0x1p-23f;
        }
    }
    return 0;
}
