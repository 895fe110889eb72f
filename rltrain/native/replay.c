/* Drawing transitions from the replay's rows. Belongs to one thread at a time; nothing is shared.
 *
 * A row is one env step: item = (lane * rows + row) * num_envs + env. The next observation of a row is the observation
 * of the row behind it, so each observation lies there once. Rows of a lane are a ring; the caller draws only rows
 * whose windows are whole (see store.py).
 *
 * flags: bit 0 valid, bit 1 terminated, bit 2 truncated or cut. */
#include "protocol.h"

#include <errno.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { TERMINATED = 2, TRUNCATED = 4, STREAMED_BYTES = 4096 };

/* n-step windows: for each item the sum of discounted rewards up to the end of the episode or n_step rows, what the
 * value behind it is multiplied with, and the item of the row behind it. O(count * n_step). Returns -EINVAL, nothing
 * else written, when an item is out of range. */
int rl_replay_windows(const rl_replay *replay, const int64_t *items, int64_t count, float *returns, float *discounts,
                      int64_t *next_items)
{
    int64_t num_envs = replay->num_envs, lane_items = replay->rows * num_envs;
    for (int64_t i = 0; i < count; i++)
        if (items[i] < 0 || items[i] >= replay->num_lanes * lane_items)
            return -EINVAL;
    for (int64_t i = 0; i < count; i++) {
        __builtin_prefetch(replay->rewards + items[i]);
        __builtin_prefetch(replay->flags + items[i]);
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t at = items[i], lane_end = (items[i] / lane_items + 1) * lane_items;
        double sum = 0, factor = 1;
        uint8_t flags = 0;
        for (int64_t k = 0; k < replay->n_step && !(flags & (TERMINATED | TRUNCATED)); k++) {
            sum += factor * (double)replay->rewards[at];
            factor *= replay->discount;
            flags = replay->flags[at];
            at += num_envs;
            if (at >= lane_end)
                at -= lane_items;
        }
        returns[i] = (float)sum;
        discounts[i] = flags & TERMINATED ? 0.0f : (float)factor;
        next_items[i] = at;
    }
    return 0;
}

/* Copy what is not read again soon past the caches. Both ends 16-byte aligned, as blocks of frames are. */
static void copy_block(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
#ifdef __SSE2__
    if (bytes >= STREAMED_BYTES && ((uintptr_t)to & 15) == 0) {
        uint64_t whole = bytes & ~(uint64_t)63;
        for (uint64_t at = 0; at < whole; at += 64) {
            __builtin_prefetch(from + at + 512);
            __m128i a = _mm_loadu_si128((const __m128i *)(from + at));
            __m128i b = _mm_loadu_si128((const __m128i *)(from + at + 16));
            __m128i c = _mm_loadu_si128((const __m128i *)(from + at + 32));
            __m128i d = _mm_loadu_si128((const __m128i *)(from + at + 48));
            _mm_stream_si128((__m128i *)(to + at), a);
            _mm_stream_si128((__m128i *)(to + at + 16), b);
            _mm_stream_si128((__m128i *)(to + at + 32), c);
            _mm_stream_si128((__m128i *)(to + at + 48), d);
        }
        to += whole;
        from += whole;
        bytes -= whole;
    }
#endif
    memcpy(to, from, bytes);
}

/* Let stores past the caches be seen by whoever gets the rows next. */
static void finish_copies(void)
{
#ifdef __SSE2__
    _mm_sfence();
#endif
}

/* rows[i] = field[items[i]] for each field. O(bytes). */
void rl_replay_copy(const rl_replay_field *fields, int64_t num_fields, const int64_t *items, const int64_t *next_items,
                    int64_t count)
{
    for (int64_t f = 0; f < num_fields; f++) {
        const int64_t *of = fields[f].is_next ? next_items : items;
        uint64_t bytes = fields[f].item_bytes;
        for (int64_t i = 0; i < count; i++)
            __builtin_prefetch(fields[f].source + (uint64_t)of[i] * bytes);
        for (int64_t i = 0; i < count; i++)
            copy_block(fields[f].rows + (uint64_t)i * bytes, fields[f].source + (uint64_t)of[i] * bytes, bytes);
    }
    finish_copies();
}

static const uint8_t *frame_of(const rl_frames *frames, int64_t ring, int64_t number)
{
    return frames->source + (uint64_t)(ring * frames->num_frames + number % frames->num_frames) * frames->frame_bytes;
}

/* Put the stack of frames that ends with frame `newest` of an env's ring together, oldest first. */
static void copy_stack(const rl_frames *frames, int64_t ring, int64_t newest, uint8_t *to)
{
    int64_t first = (newest - frames->stack + 1) % frames->num_frames;
    int64_t head = frames->num_frames - first < frames->stack ? frames->num_frames - first : frames->stack;
    uint64_t bytes = (uint64_t)head * frames->frame_bytes;
    copy_block(to, frame_of(frames, ring, first), bytes);
    if (head < frames->stack)
        copy_block(to + bytes, frame_of(frames, ring, 0), (uint64_t)(frames->stack - head) * frames->frame_bytes);
}

/* rows[i] = the stack of items[i], next_rows[i] = that of next_items[i]: one after the other, as they share frames that
 * are then still in the cache. O(bytes). */
void rl_replay_stacks(const rl_replay *replay, const rl_frames *frames, const int64_t *items, const int64_t *next_items,
                      int64_t count, uint8_t *rows, uint8_t *next_rows)
{
    int64_t num_envs = replay->num_envs, lane_items = replay->rows * num_envs;
    uint64_t bytes = (uint64_t)frames->stack * frames->frame_bytes;
    for (int64_t i = 0; i < count; i++) {
        __builtin_prefetch(frames->newest + items[i]);
        __builtin_prefetch(frames->newest + next_items[i]);
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t ring = items[i] / lane_items * num_envs + items[i] % num_envs;
        copy_stack(frames, ring, frames->newest[items[i]], rows + (uint64_t)i * bytes);
        copy_stack(frames, ring, frames->newest[next_items[i]], next_rows + (uint64_t)i * bytes);
    }
    finish_copies();
}

/* Add an env's next observations: of a stack that goes on from the one before only the last frame, else all of it.
 * `stacks` has one every `pitch_bytes`; `newest` gets the number of each one's last frame, every `newest_pitch`.
 * O(bytes). Returns the number of frames that the ring has got so far. */
int64_t rl_replay_push(const rl_frames *frames, int64_t ring, int64_t num_pushed, const uint8_t *stacks,
                       uint64_t pitch_bytes, int64_t count, int64_t *newest, int64_t newest_pitch)
{
    uint64_t bytes = frames->frame_bytes;
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *stack = stacks + (uint64_t)i * pitch_bytes;
        int64_t shared = num_pushed < frames->stack ? 0 : frames->stack - 1;
        for (int64_t k = 0; k < shared; k++)
            if (memcmp(stack + (uint64_t)k * bytes, frame_of(frames, ring, num_pushed - shared + k), bytes) != 0) {
                shared = 0;
                break;
            }
        for (int64_t k = shared; k < frames->stack; k++, num_pushed++)
            memcpy((uint8_t *)frame_of(frames, ring, num_pushed), stack + (uint64_t)k * bytes, bytes);
        newest[i * newest_pitch] = num_pushed - 1;
    }
    return num_pushed;
}
