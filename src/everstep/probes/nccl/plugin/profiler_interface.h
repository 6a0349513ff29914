/* As much of NCCL's published profiler interface as the plug-in uses, in our own words: versions 3 to 6.
 *
 * NCCL looks for the newest of the symbols ncclProfiler_v6, _v5, ... that a library exports. The layouts are those of
 * NCCL 2.26 (version 3), 2.27 (4), 2.28 (5) and 2.29 (6). Members that no version of ours reads keep their places. */
#ifndef EVERSTEP_PROFILER_INTERFACE_H
#define EVERSTEP_PROFILER_INTERFACE_H

#include <stddef.h>
#include <stdint.h>

typedef int nccl_result; /* 0: success */

enum { EVENT_COLL = 1 << 1, EVENT_KERNEL_CHANNEL = 1 << 6, EVENT_LAST = 1 << 14 };
enum { STATE_KERNEL_CHANNEL_STOP = 22 };

/* A collective, as the host hands it to the device. Version 3 names its communicator in each event. */
struct coll_v3 {
  const char *name;
  uint64_t comm_hash;
  uint64_t seq;
  const char *func;
  const void *send;
  void *receive;
  size_t count;
  int root;
  const char *datatype;
  uint8_t num_channels, num_warps;
  const char *algo, *proto;
};

struct coll_v4 {
  uint64_t seq; /* counted per communicator and function */
  const char *func;
  const void *send;
  void *receive;
  size_t count;
  int root;
  const char *datatype;
  uint8_t num_channels, num_warps;
  const char *algo, *proto;
  void *parent_group; /* since version 5 */
};

/* The kernel of a collective on one channel. */
struct kernel_channel {
  uint8_t channel;
  uint64_t timer; /* of the device, nanoseconds; since version 4 */
};

struct event_v3 {
  uint8_t type;
  void *parent;
  int rank;
  union {
    struct coll_v3 coll;
    struct kernel_channel kernel; /* without `timer` */
  };
};

struct event_v4 {
  uint8_t type;
  void *parent;
  int rank;
  union {
    struct coll_v4 coll;
    struct kernel_channel kernel;
  };
};

struct event_v5 { /* and of version 6 */
  uint64_t type;
  void *parent;
  int rank;
  union {
    struct coll_v4 coll;
    struct kernel_channel kernel;
  };
};

/* Arguments of a change of state: of a kernel's stop, the device's clock. */
struct state_args {
  uint64_t timer;
};

typedef void (*nccl_logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

struct profiler_v3 {
  const char *name;
  nccl_result (*init)(void **context, int *mask);
  nccl_result (*start)(void *context, void **handle, struct event_v3 *event);
  nccl_result (*stop)(void *handle);
  nccl_result (*record)(void *handle, int state, struct state_args *args);
  nccl_result (*finalize)(void *context);
};

struct profiler_v4 {
  const char *name;
  nccl_result (*init)(void **context, int *mask, const char *comm_name, uint64_t comm_hash, int num_nodes,
                      int num_ranks, int rank, nccl_logger log);
  nccl_result (*start)(void *context, void **handle, struct event_v4 *event);
  nccl_result (*stop)(void *handle);
  nccl_result (*record)(void *handle, int state, struct state_args *args);
  nccl_result (*finalize)(void *context);
};

struct profiler_v5 { /* and of version 6 */
  const char *name;
  nccl_result (*init)(void **context, uint64_t comm_hash, int *mask, const char *comm_name, int num_nodes,
                      int num_ranks, int rank, nccl_logger log);
  nccl_result (*start)(void *context, void **handle, struct event_v5 *event);
  nccl_result (*stop)(void *handle);
  nccl_result (*record)(void *handle, int state, struct state_args *args);
  nccl_result (*finalize)(void *context);
};

#endif
