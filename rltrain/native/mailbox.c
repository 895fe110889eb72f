/* Requests of actors and replies of the server, one mailbox for each lane, at most one request in flight in each.
 * A request is open while `request` differs from the count in `reply`; so a restarted server finds what is open. */
#include "futex.h"

#include <errno.h>

#define COUNT_MASK 0x7fffffffu

/* Close a lane's open request without an answer. For the lane's actor, and after its death for the supervisor. O(1). */
void rl_mailbox_cancel(rl_mailbox *boxes, int64_t lane)
{
    rl_mailbox *box = &boxes[lane];
    uint32_t request = atomic_load_explicit(&box->request, memory_order_acquire);
    uint32_t reply = atomic_load_explicit(&box->reply.word, memory_order_acquire);
    while (reply >> 1 != request && !rl_event_advance(&box->reply, &reply, request))
        ;
}

/* O(1). A restarted actor may find its last life's request open: it is withdrawn before the payload changes, so that
 * the server never reads half of one request and half of the next (see read_open). */
void rl_mailbox_post(rl_doorbell *doorbell, rl_mailbox *boxes, int64_t lane, int64_t slot, int64_t step,
                     int64_t fragment_index, int64_t required_version)
{
    rl_mailbox *box = &boxes[lane];
    uint32_t request = atomic_load_explicit(&box->request, memory_order_relaxed);
    rl_mailbox_cancel(boxes, lane);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&box->slot, slot, memory_order_relaxed);
    atomic_store_explicit(&box->step, step, memory_order_relaxed);
    atomic_store_explicit(&box->fragment_index, fragment_index, memory_order_relaxed);
    atomic_store_explicit(&box->required_version, required_version, memory_order_relaxed);
    atomic_store_explicit(&box->arrival_ns, rl_now_ns(), memory_order_relaxed);
    atomic_store_explicit(&box->request, (request + 1) & COUNT_MASK, memory_order_release);
    rl_event_notify(&doorbell->rung);
}

/* Wait until the lane's request is answered. Returns 0, -ETIMEDOUT or -EINTR. */
int rl_mailbox_wait_reply(rl_mailbox *boxes, int64_t lane, int64_t timeout_ns)
{
    rl_mailbox *box = &boxes[lane];
    uint32_t request = atomic_load_explicit(&box->request, memory_order_relaxed);
    int64_t deadline_ns = 0;
    for (;;) {
        uint32_t seen = rl_event_count(&box->reply);
        if (seen == request)
            return 0;
        if (timeout_ns <= 0)
            return -ETIMEDOUT;
        if (deadline_ns == 0)
            deadline_ns = rl_now_ns() + timeout_ns;
        int rc = rl_event_wait(&box->reply, seen, deadline_ns);
        if (rc < 0)
            return rc;
    }
}

uint32_t rl_doorbell_count(rl_doorbell *doorbell)
{
    return rl_event_count(&doorbell->rung);
}

/* Wait until the doorbell differs from `seen`, the time is over or a signal arrived. Returns the doorbell. */
uint32_t rl_doorbell_wait(rl_doorbell *doorbell, uint32_t seen, int64_t timeout_ns)
{
    rl_event_wait(&doorbell->rung, seen, rl_now_ns() + timeout_ns);
    return rl_event_count(&doorbell->rung);
}

/* Read a lane's open request to place `at`. Returns 0 when there is none, or when it changed meanwhile: then another
 * ring of the doorbell follows. The acquire fence pairs with the release fence in rl_mailbox_post. */
static int read_open(rl_mailbox *box, int64_t lane, int64_t at, rl_pending *out)
{
    uint32_t request = atomic_load_explicit(&box->request, memory_order_acquire);
    if (rl_event_count(&box->reply) == request)
        return 0;
    out->lane[at] = lane;
    out->slot[at] = atomic_load_explicit(&box->slot, memory_order_relaxed);
    out->step[at] = atomic_load_explicit(&box->step, memory_order_relaxed);
    out->fragment_index[at] = atomic_load_explicit(&box->fragment_index, memory_order_relaxed);
    out->required_version[at] = atomic_load_explicit(&box->required_version, memory_order_relaxed);
    out->arrival_ns[at] = atomic_load_explicit(&box->arrival_ns, memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    if (rl_event_count(&box->reply) == request
        || atomic_load_explicit(&box->request, memory_order_relaxed) != request)
        return 0;
    out->served[lane] = request;
    return 1;
}

static inline void swap(int64_t *a, int64_t *b)
{
    int64_t kept = *a;
    *a = *b;
    *b = kept;
}

static inline void swap_rows(rl_pending *out, int64_t a, int64_t b)
{
    swap(&out->lane[a], &out->lane[b]);
    swap(&out->slot[a], &out->slot[b]);
    swap(&out->step[a], &out->step[b]);
    swap(&out->fragment_index[a], &out->fragment_index[b]);
    swap(&out->required_version[a], &out->required_version[b]);
    swap(&out->arrival_ns[a], &out->arrival_ns[b]);
}

static inline int is_older(const rl_pending *out, int64_t a, int64_t b)
{
    if (out->arrival_ns[a] != out->arrival_ns[b])
        return out->arrival_ns[a] < out->arrival_ns[b];
    return out->lane[a] < out->lane[b];
}

static void sift_down(rl_pending *out, int64_t root, int64_t num)
{
    for (int64_t child = 2 * root + 1; child < num; child = 2 * root + 1) {
        if (child + 1 < num && is_older(out, child, child + 1))
            child++;
        if (!is_older(out, root, child))
            return;
        swap_rows(out, root, child);
        root = child;
    }
}

/* Heap sort: in place, and thousands of lanes stay cheap. O(n log n). */
static void sort_by_arrival(rl_pending *out, int64_t num)
{
    for (int64_t root = num / 2 - 1; root >= 0; root--)
        sift_down(out, root, num);
    for (int64_t last = num - 1; last > 0; last--) {
        swap_rows(out, 0, last);
        sift_down(out, 0, last);
    }
}

/* Collect all open requests, oldest first. Returns how many. O(lanes + n log n). */
int64_t rl_mailbox_pending(rl_mailbox *boxes, int64_t num_lanes, rl_pending *out)
{
    int64_t num = 0;
    for (int64_t lane = 0; lane < num_lanes; lane++)
        num += read_open(&boxes[lane], lane, num, out);
    sort_by_arrival(out, num);
    return num;
}

/* Answer what rl_mailbox_pending handed out last for these lanes. A request that was withdrawn meanwhile stays
 * unanswered. Returns how many were; -EINVAL, nothing answered, for a lane out of range. O(n). */
int64_t rl_mailbox_reply(rl_mailbox *boxes, int64_t num_lanes, const int64_t *lanes, int64_t num_replies,
                         const uint32_t *served, int64_t policy_version)
{
    int64_t num_late = 0;
    for (int64_t i = 0; i < num_replies; i++)
        if (lanes[i] < 0 || lanes[i] >= num_lanes)
            return -EINVAL;
    for (int64_t i = 0; i < num_replies; i++) {
        rl_mailbox *box = &boxes[lanes[i]];
        uint32_t request = served[lanes[i]];
        uint32_t reply = atomic_load_explicit(&box->reply.word, memory_order_acquire);
        atomic_store_explicit(&box->reply_version, policy_version, memory_order_relaxed);
        for (;;) {
            if (reply >> 1 == request || atomic_load_explicit(&box->request, memory_order_acquire) != request) {
                num_late++;
                break;
            }
            if (rl_event_advance(&box->reply, &reply, request))
                break;
        }
    }
    return num_late;
}

int64_t rl_mailbox_reply_version(rl_mailbox *boxes, int64_t lane)
{
    return atomic_load_explicit(&boxes[lane].reply_version, memory_order_relaxed);
}

int64_t rl_mailbox_progress(rl_mailbox *boxes, int64_t lane)
{
    return atomic_load_explicit(&boxes[lane].progress, memory_order_relaxed);
}

void rl_mailbox_set_progress(rl_mailbox *boxes, int64_t lane, int64_t fragment_index)
{
    atomic_store_explicit(&boxes[lane].progress, fragment_index, memory_order_relaxed);
}

void rl_mailbox_set_live(rl_mailbox *boxes, int64_t lane, uint32_t live)
{
    atomic_store_explicit(&boxes[lane].live, live, memory_order_relaxed);
}

/* O(lanes). */
int64_t rl_mailbox_num_live(rl_mailbox *boxes, int64_t num_lanes)
{
    int64_t num = 0;
    for (int64_t lane = 0; lane < num_lanes; lane++)
        num += atomic_load_explicit(&boxes[lane].live, memory_order_relaxed) != 0;
    return num;
}
