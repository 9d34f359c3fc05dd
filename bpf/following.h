/*
 * The maps for following, stopping and resuming processes. bpf/process.bpf.c, the recorder and the guardian share them.
 */
#ifndef GPUREC_FOLLOWING_H
#define GPUREC_FOLLOWING_H

/* Files that gpurec has examined: no process needs to stop for them again. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GPUREC_MAX_FILES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gpurec_file);
	__type(value, struct gpurec_seen);
} seen SEC(".maps");

/* Processes stopped by gpurec, each with the number of new files that it waits for and, above GPUREC_STOP_COUNT
 * bits, the time of the stop (ms), which distinguishes one stop from the next. The guardian reads this map too. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GPUREC_MAX_TARGETS);
	__type(key, u32);
	__type(value, u64);
} stopped SEC(".maps");

/* Processes that the recorder is resuming. No program reads this map. The recorder may be killed between removing a
 * process from the other maps and sending SIGCONT; then the guardian resumes it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, u32);
} going SEC(".maps");

/* When the guardian last resumed the stopped processes because the recorder did not run. Processes that were stopped
 * before that time ran on before gpurec had read their files. No program reads this map. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} rescued SEC(".maps");

#endif
