/* Moving rows between the slab and a caller's arrays. Plain copies: the slot and mailbox words order them. */
#include "protocol.h"

#include <errno.h>
#include <string.h>

static int in_range(const int64_t *slots, const int64_t *steps, int64_t num_requests, int64_t num_slots,
                    int64_t num_steps)
{
    for (int64_t i = 0; i < num_requests; i++)
        if (slots[i] < 0 || slots[i] >= num_slots || steps[i] < 0 || steps[i] >= num_steps)
            return 0;
    return 1;
}

/* rows[i] = slab[slots[i], steps[i]] for each field. O(bytes). Returns -EINVAL, nothing copied, out of range. */
int rl_gather_step(const rl_copy *fields, int64_t num_fields, const int64_t *slots, const int64_t *steps,
                   int64_t num_requests, int64_t num_slots, int64_t num_steps)
{
    if (!in_range(slots, steps, num_requests, num_slots, num_steps))
        return -EINVAL;
    for (int64_t f = 0; f < num_fields; f++) {
        uint64_t bytes = fields[f].block_bytes;
        for (int64_t i = 0; i < num_requests; i++)
            memcpy(fields[f].rows + (uint64_t)i * bytes,
                   fields[f].slab + (uint64_t)(slots[i] * num_steps + steps[i]) * bytes, bytes);
    }
    return 0;
}

/* slab[slots[i], steps[i]] = rows[i] for each field. O(bytes). Returns -EINVAL, nothing copied, out of range. */
int rl_scatter_step(const rl_copy *fields, int64_t num_fields, const int64_t *slots, const int64_t *steps,
                    int64_t num_requests, int64_t num_slots, int64_t num_steps)
{
    if (!in_range(slots, steps, num_requests, num_slots, num_steps))
        return -EINVAL;
    for (int64_t f = 0; f < num_fields; f++) {
        uint64_t bytes = fields[f].block_bytes;
        for (int64_t i = 0; i < num_requests; i++)
            memcpy(fields[f].slab + (uint64_t)(slots[i] * num_steps + steps[i]) * bytes,
                   fields[f].rows + (uint64_t)i * bytes, bytes);
    }
    return 0;
}

/* rows[t, position] = slab[slot, t] for each field and step, `position` counted in blocks. O(bytes). */
void rl_gather_fragment(const rl_copy *fields, int64_t num_fields, int64_t slot, int64_t position, int64_t num_steps)
{
    for (int64_t f = 0; f < num_fields; f++) {
        uint64_t bytes = fields[f].block_bytes;
        const uint8_t *from = fields[f].slab + (uint64_t)(slot * num_steps) * bytes;
        uint8_t *to = fields[f].rows + (uint64_t)position * bytes;
        for (int64_t t = 0; t < num_steps; t++)
            memcpy(to + (uint64_t)t * fields[f].pitch_bytes, from + (uint64_t)t * bytes, bytes);
    }
}
