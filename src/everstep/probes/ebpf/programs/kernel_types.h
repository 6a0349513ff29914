/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
 * Kernel types, cut down to the fields that the programs touch. The loader relocates each field by name against the
 * running kernel's BTF (CO-RE), so offsets and missing neighbours do not matter, and no vmlinux.h is needed to build. */
#ifndef EVERSTEP_KERNEL_TYPES_H
#define EVERSTEP_KERNEL_TYPES_H
#define __VMLINUX_H__

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef _Bool bool;

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};
enum { BPF_ANY = 0, BPF_NOEXIST = 1, BPF_F_NO_PREALLOC = 1, BPF_LOCAL_STORAGE_GET_F_CREATE = 1 };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct qstr {
	const unsigned char *name;
};
struct super_block {
	u32 s_dev;
};
struct inode {
	u16 i_mode;
	unsigned long i_ino;
	struct super_block *i_sb;
};
struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
	struct inode *d_inode;
};
struct path {
	struct dentry *dentry;
};
struct file {
	struct path f_path;
};
struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};
struct files_struct {
	struct fdtable *fdt;
};
struct cfs_rq {
	int throttle_count;
};
struct sched_entity {
	struct cfs_rq *cfs_rq;
};
struct task_struct {
	int pid;
	int tgid;
	unsigned int __state;
	char comm[16];
	struct files_struct *files;
	struct sched_entity se;
	bool throttled; /* since 6.18 */
};
struct task_struct___before_5_14 {
	long state;
};
struct pt_regs___x86 {
	unsigned long di;
	unsigned long orig_ax;
};
struct pt_regs___arm64 {
	u64 orig_x0;
	s32 syscallno;
};

#pragma clang attribute pop

struct pt_regs;
#endif
