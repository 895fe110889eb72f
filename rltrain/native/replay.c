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

enum { TERMINATED = 2, TRUNCATED = 4, LINE_BYTES = 64, PAGE_BYTES = 4096, ITEMS_AHEAD = 16 };

/* n-step windows: for each item the sum of discounted rewards up to the end of the episode or n_step rows, what the
 * value behind it is multiplied with, and the item of the row behind it. O(count * n_step). */
static void sum_windows(const rl_replay *replay, const int64_t *items, const rl_replay_batch *batch)
{
    int64_t num_envs = replay->num_envs, lane_items = replay->rows * num_envs;
    for (int64_t i = 0; i < batch->count; i++) {
        __builtin_prefetch(replay->rewards + items[i]);
        __builtin_prefetch(replay->flags + items[i]);
    }
    for (int64_t i = 0; i < batch->count; i++) {
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
        batch->returns[i] = (float)sum;
        batch->discounts[i] = flags & TERMINATED ? 0.0f : (float)factor;
        batch->next_items[i] = at;
    }
}

/* Ask for a block: all of a small one; of a large one each page's beginning, from where the hardware reads on. */
static void prefetch(const uint8_t *from, uint64_t bytes)
{
    uint64_t step = bytes < PAGE_BYTES ? LINE_BYTES : PAGE_BYTES;
    for (uint64_t at = 0; at < bytes; at += step)
        __builtin_prefetch(from + at);
    __builtin_prefetch(from + bytes - 1);
}

/* rows[i] = source[of[i]]. Stores past the caches took 1.7 times as long as these, with blocks of 28 KB. */
static void copy_items(uint8_t *rows, const uint8_t *source, uint64_t bytes, const int64_t *of, int64_t count)
{
    int64_t ahead = bytes < PAGE_BYTES ? ITEMS_AHEAD : 1;
    for (int64_t i = 0; i < ahead && i < count; i++)
        prefetch(source + (uint64_t)of[i] * bytes, bytes);
    for (int64_t i = 0; i < count; i++) {
        if (i + ahead < count)
            prefetch(source + (uint64_t)of[i + ahead] * bytes, bytes);
        memcpy(rows + (uint64_t)i * bytes, source + (uint64_t)of[i] * bytes, bytes);
    }
}

static uint8_t *frame_of(const rl_frames *frames, int64_t ring, int64_t number)
{
    return frames->source + (uint64_t)(ring * frames->num_frames + number % frames->num_frames) * frames->frame_bytes;
}

/* Number of the first frame of an item's stack. An item that was never written has none: any frames do. */
static int64_t first_frame(const rl_frames *frames, int64_t item)
{
    int64_t newest = frames->newest[item];
    return newest < frames->stack ? 0 : newest - frames->stack + 1;
}

static int64_t ring_of(const rl_replay *replay, int64_t item)
{
    return item / (replay->rows * replay->num_envs) * replay->num_envs + item % replay->num_envs;
}

/* Put a stack of an env's ring together, oldest frame first. */
static void copy_stack(const rl_frames *frames, int64_t ring, int64_t first, uint8_t *to)
{
    int64_t until_end = frames->num_frames - first % frames->num_frames;
    int64_t head = until_end < frames->stack ? until_end : frames->stack;
    uint64_t bytes = (uint64_t)head * frames->frame_bytes;
    memcpy(to, frame_of(frames, ring, first), bytes);
    if (head < frames->stack)
        memcpy(to + bytes, frame_of(frames, ring, 0), (uint64_t)(frames->stack - head) * frames->frame_bytes);
}

/* rows[i] = the stack of items[i], next_rows[i] = that of next_items[i]: one after the other, as they share frames that
 * are then still in the cache. */
static void copy_stacks(const rl_replay *replay, const rl_replay_field *field, const int64_t *items,
                        const int64_t *next_items, int64_t count)
{
    const rl_frames *frames = field->frames;
    uint64_t bytes = (uint64_t)frames->stack * frames->frame_bytes;
    for (int64_t i = 0; i < count; i++) {
        __builtin_prefetch(frames->newest + items[i]);
        __builtin_prefetch(frames->newest + next_items[i]);
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t ring = ring_of(replay, items[i]);
        if (i + 1 < count) { /* both stacks of the item after this one; what is behind the ring's end is only asked for */
            int64_t first = first_frame(frames, items[i + 1]), end = first_frame(frames, next_items[i + 1]);
            uint64_t span = end > first ? (uint64_t)(end - first) * frames->frame_bytes : 0;
            prefetch(frame_of(frames, ring_of(replay, items[i + 1]), first), bytes + (span < bytes ? span : bytes));
        }
        copy_stack(frames, ring, first_frame(frames, items[i]), field->rows + (uint64_t)i * bytes);
        copy_stack(frames, ring, first_frame(frames, next_items[i]), field->next_rows + (uint64_t)i * bytes);
    }
}

/* Read items into a batch, whose arrays all have `count` rows. O(bytes + count * n_step). Returns -EINVAL, nothing
 * written, when an item is out of range; what an item that cannot be drawn gives is not specified. */
int rl_replay_gather(const rl_replay *replay, const int64_t *items, const rl_replay_batch *batch)
{
    for (int64_t i = 0; i < batch->count; i++)
        if (items[i] < 0 || items[i] >= replay->num_lanes * replay->rows * replay->num_envs)
            return -EINVAL;
    sum_windows(replay, items, batch);
    for (int64_t f = 0; f < batch->num_fields; f++) {
        const rl_replay_field *field = batch->fields + f;
        if (field->frames) {
            copy_stacks(replay, field, items, batch->next_items, batch->count);
            continue;
        }
        copy_items(field->rows, field->source, field->item_bytes, items, batch->count);
        if (field->next_rows)
            copy_items(field->next_rows, field->source, field->item_bytes, batch->next_items, batch->count);
    }
    return 0;
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
            memcpy(frame_of(frames, ring, num_pushed), stack + (uint64_t)k * bytes, bytes);
        newest[i * newest_pitch] = num_pushed - 1;
    }
    return num_pushed;
}
