/* NCCL profiler plug-in: when each collective was queued, and when its kernels began and ended.
 *
 * It has never run under a real NCCL. It was built from the published interface, and is tested by a program that calls
 * it as NCCL's source does.
 *
 * It writes records of fixed size to a ring in memory without a name (memfd "everstep-nccl"), which the agent reads
 * through /proc/PID/fd. Nothing allocates, locks or waits after the first init; what does not fit is counted. Handles
 * and contexts are numbers and never dereferenced, so a wrong one does no harm. Every call reports success, whatever
 * happens: a profiler must not stop a training. The reader is probes/nccl/ring.py. */
#include "profiler_interface.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#endif
enum { CAPACITY = 2048, MAX_COMMS = 64, MAX_CHANNELS = 64, NAME = 16, HEADER = 4096 };
enum { MFD_CLOEXEC_ = 1, MFD_ALLOW_SEALING_ = 2, SEAL_SHRINK = 2 };
enum { KIND_COLL = 0xC1, KIND_KERNEL = 0xC2 };

struct header {
  char magic[8];
  uint32_t version, record_size, capacity, pid;
  uint64_t wall_ns, mono_ns; /* the same moment on both clocks */
  uint64_t next;             /* collectives that got a record so far */
  uint64_t num_late;         /* events and collectives whose record belongs to a newer one, or is still written */
  uint64_t num_malformed;    /* a descriptor, handle or context that cannot be right */
  uint64_t num_unknown;      /* events of a type that the interface does not have */
  uint64_t num_unmatched;    /* stops without a start */
  uint64_t num_homeless;     /* collectives of communicators that found no room */
};

struct record {
  uint64_t stamp; /* number of the record + 1; 0: none so far */
  uint64_t comm, ordinal, seq, count;
  uint64_t queued_ns, launched_ns; /* monotonic clock; 0: not yet */
  uint64_t begin_ns, end_ns;       /* first kernel began, last kernel ended, as NCCL's proxy thread noticed */
  uint64_t device_begin, device_end;
  uint64_t begun, ended; /* channels, one bit each */
  uint32_t num_ranks, rank;
  uint8_t num_channels, interface, is_odd, pad[5];
  char func[NAME], datatype[NAME];
  uint64_t reserved;
};

struct comm {
  uint64_t hash, num_ops;
  uint32_t num_ranks, rank;
  uint32_t state; /* 0 free, 1 being set, 2 in use */
};

_Static_assert(sizeof(struct record) == 160, "the reader knows this size");
_Static_assert(sizeof(struct header) <= HEADER, "the header has one page");

static struct header *ring; /* NULL: nothing is recorded */
static struct comm comms[MAX_COMMS];
static int opening; /* 0 not yet, 1 under way, 2 done */

#define WRITING UINT64_MAX /* as a stamp, which is larger than every other */
#define LOAD(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define STORE(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)
#define ADD(p, v) __atomic_fetch_add(p, v, __ATOMIC_RELAXED)

static uint64_t clock_ns(clockid_t clock) {
  struct timespec t;
  if (clock_gettime(clock, &t)) return 0;
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void count(uint64_t *counter) {
  ADD(counter, 1);
}

/* All pages are written here: later no page can be missing, and no signal can come of it. */
static int fill(int fd) {
  static const char zeros[HEADER];
  size_t left = HEADER + (size_t)CAPACITY * sizeof(struct record);
  while (left) {
    ssize_t written = write(fd, zeros, left < sizeof zeros ? left : sizeof zeros);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return -1;
    left -= (size_t)written;
  }
  return fcntl(fd, F_ADD_SEALS, SEAL_SHRINK);
}

static void make_ring(void) {
  int fd = (int)syscall(SYS_memfd_create, "everstep-nccl", MFD_CLOEXEC_ | MFD_ALLOW_SEALING_);
  if (fd < 0) return;
  size_t size = HEADER + (size_t)CAPACITY * sizeof(struct record);
  void *memory = fill(fd) ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    close(fd);
    return;
  }
  struct header *new = memory; /* the descriptor stays open: it is how the agent finds the ring */
  new->version = 1;
  new->record_size = sizeof(struct record);
  new->capacity = CAPACITY;
  new->pid = (uint32_t)getpid();
  new->mono_ns = clock_ns(CLOCK_MONOTONIC);
  new->wall_ns = clock_ns(CLOCK_REALTIME);
  memcpy(new->magic, "EVSNCCL", 8);
  STORE(&ring, new);
}

/* One try, by one thread; others wait for it, for 0.1 s at most. */
static void open_ring(void) {
  int never = 0;
  if (__atomic_compare_exchange_n(&opening, &never, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    make_ring();
    STORE(&opening, 2);
  }
  for (int i = 0; i < 100 && LOAD(&opening) != 2; i++) nanosleep(&(struct timespec){0, 1000000}, NULL);
}

static struct record *record_of(struct header *to, uint64_t number) {
  return (struct record *)((char *)to + HEADER) + number % CAPACITY;
}

/* Contexts and handles: numbers that say what they are. */
static void *handle_of(uint64_t number, unsigned channel, unsigned kind) {
  return (void *)(uintptr_t)((number + 1) << 16 | (uint64_t)channel << 8 | kind);
}

static unsigned kind_of(const void *handle) {
  return (uintptr_t)handle & 0xff;
}

static struct record *record_at(struct header *to, const void *handle) {
  uint64_t value = (uint64_t)(uintptr_t)handle, number = (value >> 16) - 1;
  if (value >> 16 == 0 || number >= LOAD(&to->next)) {
    count(&to->num_malformed);
    return NULL;
  }
  struct record *found = record_of(to, number);
  if (LOAD(&found->stamp) != number + 1) {
    count(&to->num_late);
    return NULL;
  }
  return found;
}

/* After a change: if the record became another one's meanwhile, its times are not to be believed. */
static void settle(struct header *to, struct record *at, const void *handle) {
  if (LOAD(&at->stamp) == (uint64_t)(uintptr_t)handle >> 16) return;
  STORE(&at->is_odd, 1);
  count(&to->num_late);
}

static struct comm *comm_at(const void *context) {
  uintptr_t place = (uintptr_t)context;
  return place >= 1 && place <= MAX_COMMS && LOAD(&comms[place - 1].state) == 2 ? &comms[place - 1] : NULL;
}

static struct comm *new_comm(uint64_t hash, int num_ranks, int rank) {
  for (int i = 0; i < MAX_COMMS; i++) {
    uint32_t is_free = 0;
    if (!__atomic_compare_exchange_n(&comms[i].state, &is_free, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) continue;
    comms[i].hash = hash;
    comms[i].num_ops = 0;
    comms[i].num_ranks = num_ranks > 0 ? (uint32_t)num_ranks : 0;
    comms[i].rank = rank >= 0 ? (uint32_t)rank : 0;
    STORE(&comms[i].state, 2);
    return &comms[i];
  }
  return NULL;
}

/* Version 3 names the communicator in its events only. */
static struct comm *named_comm(uint64_t hash, int rank) {
  for (int i = 0; i < MAX_COMMS; i++)
    if (LOAD(&comms[i].state) == 2 && comms[i].hash == hash) return &comms[i];
  return new_comm(hash, 0, rank);
}

static void begin(void **context, int *mask, uint64_t hash, int num_ranks, int rank, int has_names) {
  open_ring();
  struct comm *own = LOAD(&ring) && has_names ? new_comm(hash, num_ranks, rank) : NULL;
  if (context) *context = own ? (void *)(uintptr_t)(own - comms + 1) : NULL;
  if (mask) *mask = LOAD(&ring) ? EVENT_COLL | EVENT_KERNEL_CHANNEL : 0;
}

static nccl_result finish(void *context) {
  struct comm *own = comm_at(context);
  if (own) STORE(&own->state, 0);
  return 0;
}

static void copy_name(char *to, const char *from) {
  for (int i = 0; i < NAME - 1 && from && from[i]; i++) to[i] = from[i];
}

static void start_coll(struct header *to, struct comm *own, void **handle, const struct coll_v4 *coll, int version) {
  if (!own) {
    count(&to->num_homeless);
    return;
  }
  uint64_t number = ADD(&to->next, 1);
  struct record *at = record_of(to, number);
  uint64_t old = LOAD(&at->stamp);
  /* A thread that was held up for a whole ring's length still writes here, or is this one: newer records stay. */
  if (old > number || !__atomic_compare_exchange_n(&at->stamp, &old, WRITING, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
    count(&to->num_late);
    ADD(&own->num_ops, 1);
    return;
  }
  memset((char *)at + sizeof at->stamp, 0, sizeof *at - sizeof at->stamp);
  at->comm = own->hash;
  at->ordinal = ADD(&own->num_ops, 1);
  at->seq = coll->seq;
  at->count = coll->count;
  at->num_ranks = own->num_ranks;
  at->rank = own->rank;
  at->num_channels = coll->num_channels;
  at->interface = (uint8_t)version;
  copy_name(at->func, coll->func);
  copy_name(at->datatype, coll->datatype);
  if (!coll->func || !coll->datatype) count(&to->num_malformed);
  at->queued_ns = clock_ns(CLOCK_MONOTONIC);
  STORE(&at->stamp, number + 1);
  *handle = handle_of(number, 0, KIND_COLL);
}

static void least(uint64_t *to, uint64_t value) {
  uint64_t old = LOAD(to);
  while (value && (!old || value < old) &&
         !__atomic_compare_exchange_n(to, &old, value, 1, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
  }
}

static void most(uint64_t *to, uint64_t value) {
  uint64_t old = LOAD(to);
  while (value > old && !__atomic_compare_exchange_n(to, &old, value, 1, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
  }
}

static void start_kernel(struct header *to, void **handle, void *parent, unsigned channel, uint64_t timer) {
  if (!parent) return; /* of a send or a receive, which are not recorded */
  if (kind_of(parent) != KIND_COLL || channel >= MAX_CHANNELS) {
    count(&to->num_malformed);
    return;
  }
  struct record *at = record_at(to, parent);
  if (!at) return;
  least(&at->begin_ns, clock_ns(CLOCK_MONOTONIC));
  least(&at->device_begin, timer);
  if (__atomic_fetch_or(&at->begun, 1ull << channel, __ATOMIC_ACQ_REL) >> channel & 1) STORE(&at->is_odd, 1);
  settle(to, at, parent);
  *handle = handle_of(((uint64_t)(uintptr_t)parent >> 16) - 1, channel, KIND_KERNEL);
}

static nccl_result stop(void *handle) {
  struct header *to = LOAD(&ring);
  if (!to) return 0;
  if (!handle || (kind_of(handle) != KIND_COLL && kind_of(handle) != KIND_KERNEL)) {
    count(&to->num_unmatched);
    return 0;
  }
  struct record *at = record_at(to, handle);
  if (!at) return 0;
  uint64_t now = clock_ns(CLOCK_MONOTONIC);
  if (kind_of(handle) == KIND_COLL) {
    uint64_t never = 0;
    if (!__atomic_compare_exchange_n(&at->launched_ns, &never, now, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
      count(&to->num_unmatched);
    settle(to, at, handle);
    return 0;
  }
  uint64_t bit = 1ull << ((uintptr_t)handle >> 8 & (MAX_CHANNELS - 1));
  if (!(LOAD(&at->begun) & bit) || LOAD(&at->ended) & bit) {
    count(&to->num_unmatched);
    return 0;
  }
  most(&at->end_ns, now);
  __atomic_fetch_or(&at->ended, bit, __ATOMIC_ACQ_REL); /* last: who sees all channels ended has their times */
  settle(to, at, handle);
  return 0;
}

static nccl_result record(void *handle, int state, struct state_args *args, int has_timer) {
  struct header *to = LOAD(&ring);
  if (!to || state != STATE_KERNEL_CHANNEL_STOP) return 0;
  if (!args || kind_of(handle) != KIND_KERNEL) {
    count(&to->num_malformed);
    return 0;
  }
  struct record *at = record_at(to, handle);
  if (at && has_timer) {
    most(&at->device_end, args->timer);
    settle(to, at, handle);
  }
  return 0;
}

static int is_known(struct header *to, uint64_t type) {
  if (type && !(type & (type - 1)) && type <= EVENT_LAST) return 1;
  count(&to->num_unknown);
  return 0;
}

/* What all versions have in common; `event` differs in the width of `type` and the members of `coll`. */
#define START(version, event_type, own, timer_of)                                                       \
  static nccl_result start_v##version(void *context, void **handle, struct event_type *event) {         \
    struct header *to = LOAD(&ring);                                                                    \
    (void)context;                                                                                      \
    if (handle) *handle = NULL;                                                                         \
    if (!to) return 0;                                                                                  \
    if (!handle || !event) {                                                                            \
      count(&to->num_malformed);                                                                        \
    } else if (is_known(to, event->type)) {                                                             \
      if (event->type == EVENT_COLL) {                                                                  \
        struct coll_v4 coll = PICK(event->coll);                                                        \
        start_coll(to, own, handle, &coll, version);                                                    \
      } else if (event->type == EVENT_KERNEL_CHANNEL) {                                                 \
        start_kernel(to, handle, event->parent, event->kernel.channel, timer_of);                       \
      }                                                                                                 \
    }                                                                                                   \
    return 0;                                                                                           \
  }

/* The members that all versions have; a descriptor of version 4 ends before `parent_group`. */
#define PICK(c)                                                                                         \
  (struct coll_v4) {                                                                                    \
    .seq = (c).seq, .func = (c).func, .count = (c).count, .datatype = (c).datatype,                     \
    .num_channels = (c).num_channels                                                                    \
  }
START(3, event_v3, named_comm(event->coll.comm_hash, event->rank), 0)
START(4, event_v4, comm_at(context), event->kernel.timer)
START(5, event_v5, comm_at(context), event->kernel.timer)

static nccl_result init_v3(void **context, int *mask) {
  begin(context, mask, 0, 0, 0, 0);
  return 0;
}

static nccl_result init_v4(void **context, int *mask, const char *comm_name, uint64_t comm_hash, int num_nodes,
                           int num_ranks, int rank, nccl_logger log) {
  (void)comm_name, (void)num_nodes, (void)log;
  begin(context, mask, comm_hash, num_ranks, rank, 1);
  return 0;
}

static nccl_result init_v5(void **context, uint64_t comm_hash, int *mask, const char *comm_name, int num_nodes,
                           int num_ranks, int rank, nccl_logger log) {
  return init_v4(context, mask, comm_name, comm_hash, num_nodes, num_ranks, rank, log);
}

static nccl_result record_v3(void *handle, int state, struct state_args *args) {
  return record(handle, state, args, 0);
}

static nccl_result record_v4(void *handle, int state, struct state_args *args) {
  return record(handle, state, args, 1);
}

#define EXPORTED __attribute__((visibility("default")))
EXPORTED struct profiler_v3 ncclProfiler_v3 = {"everstep", init_v3, start_v3, stop, record_v3, finish};
EXPORTED struct profiler_v4 ncclProfiler_v4 = {"everstep", init_v4, start_v4, stop, record_v4, finish};
EXPORTED struct profiler_v5 ncclProfiler_v5 = {"everstep", init_v5, start_v5, stop, record_v4, finish};
EXPORTED struct profiler_v5 ncclProfiler_v6 = {"everstep", init_v5, start_v5, stop, record_v4, finish};
