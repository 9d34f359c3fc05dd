/*
 * The maps by which processes are followed, stopped and let go: between bpf/process.bpf.c, the recorder, and what
 * outlives the recorder.
 */
#ifndef GPUREC_FOLLOWING_H
#define GPUREC_FOLLOWING_H

/* Files that were looked at: nobody needs to stop for them again, or one process does not,
 * whose hooks are in it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GPUREC_MAX_FILES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gpurec_file);
	__type(value, u32);
} seen SEC(".maps");

/* Processes stopped by us, each with the number of new files that it waits for, and above
 * GPUREC_STOP_COUNT bits since when (ms), which tells one stop from the next. What outlives the
 * recorder reads this too. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GPUREC_MAX_TARGETS);
	__type(key, u32);
	__type(value, u64);
} stopped SEC(".maps");

/* Those that the recorder lets go just now: no program looks here. Between taking one from the
 * others and its SIGCONT the recorder may be killed; what outlives it reads this too. */
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
