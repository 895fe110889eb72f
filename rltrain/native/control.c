#include "futex.h"

/* All O(1). Each change is stored before it is announced, so whoever woke up sees it. */

uint32_t rl_control_count(rl_control *control)
{
    return rl_event_count(&control->changed);
}

int rl_control_wait(rl_control *control, uint32_t seen, int64_t timeout_ns)
{
    return rl_event_wait(&control->changed, seen, rl_now_ns() + timeout_ns);
}

void rl_control_notify(rl_control *control)
{
    rl_event_notify(&control->changed);
}

uint32_t rl_control_stop(rl_control *control)
{
    return atomic_load_explicit(&control->stop, memory_order_acquire);
}

void rl_control_set_stop(rl_control *control, uint32_t value)
{
    atomic_store_explicit(&control->stop, value, memory_order_release);
    rl_event_notify(&control->changed);
}

uint32_t rl_control_finish(rl_control *control)
{
    return atomic_load_explicit(&control->finish, memory_order_acquire);
}

void rl_control_set_finish(rl_control *control, uint32_t value)
{
    atomic_store_explicit(&control->finish, value, memory_order_release);
    rl_event_notify(&control->changed);
}

int64_t rl_control_snapshot_fragment(rl_control *control)
{
    return atomic_load_explicit(&control->snapshot_fragment_plus_one, memory_order_acquire) - 1;
}

void rl_control_set_snapshot_fragment(rl_control *control, int64_t fragment_index)
{
    atomic_store_explicit(&control->snapshot_fragment_plus_one, fragment_index + 1, memory_order_release);
    rl_event_notify(&control->changed);
}
