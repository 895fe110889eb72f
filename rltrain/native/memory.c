/* The C library's allocator, for processes that compute with large tensors. */
#include "protocol.h"

#include <stdlib.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

/* Keep freed memory in the process, up to `keep_bytes` at the end of the heap, instead of handing every large block
 * back to the kernel and paying for each of its pages again at the next one. Does nothing without glibc. */
void rl_keep_memory(int64_t keep_bytes)
{
#ifdef __GLIBC__
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, keep_bytes < 0x7fffffff ? (int)keep_bytes : 0x7fffffff);
#else
    (void)keep_bytes;
#endif
}
