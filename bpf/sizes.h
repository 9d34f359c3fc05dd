/*
 * The sizes of the structs that BPF and the recorder share (gpurec.h), checked when the programs are built: neither side
 * may see padding that the other does not. No code.
 */
#ifndef GPUREC_SIZES_H
#define GPUREC_SIZES_H

_Static_assert(sizeof(struct gpurec_positions) == 128, "positions");
_Static_assert(GPUREC_PAYLOAD + GPUREC_COMMAND < GPUREC_RING_SLACK, "slack");
_Static_assert(sizeof(struct gpurec_head) == 24, "head");
_Static_assert(sizeof(struct gpurec_call) == 88, "call");
_Static_assert(sizeof(struct gpurec_return) == 48, "return");
_Static_assert(sizeof(struct gpurec_frame) == 16, "frame");
_Static_assert(sizeof(struct gpurec_stack) == 48, "stack");
_Static_assert(sizeof(struct gpurec_mapped) == 88, "mapped");
_Static_assert(sizeof(struct gpurec_unwind) == 72, "unwind");
_Static_assert(sizeof(struct gpurec_rule) == 16, "rule");
_Static_assert(sizeof(struct gpurec_code) == 72, "code");
_Static_assert(sizeof(struct gpurec_python) == 144, "python");
_Static_assert(sizeof(struct gpurec_block) == 80, "block");
_Static_assert(sizeof(struct gpurec_argument) == 16, "argument");
_Static_assert(sizeof(struct gpurec_site) == 8 + 4 * 16, "site");
_Static_assert(sizeof(struct gpurec_read) == 12, "read");
_Static_assert(sizeof(struct gpurec_capture) == 8 + 8 * 12, "capture");
_Static_assert(sizeof(struct gpurec_piece) == 8, "piece");
_Static_assert(sizeof(struct gpurec_instant) == 96, "instant");
_Static_assert(sizeof(struct gpurec_hook) == 8 + 6 * 12, "hook");
_Static_assert(sizeof(struct gpurec_ioctl_shape) == 16, "shape");
_Static_assert(sizeof(struct gpurec_driver) == 48, "driver");
_Static_assert(sizeof(struct gpurec_spent) == 24, "spent");
_Static_assert(sizeof(struct gpurec_stack_spent) == 16, "stack_spent");
_Static_assert(sizeof(struct gpurec_fork) == 32, "fork");
_Static_assert(sizeof(struct gpurec_exit) == 32, "exit");
_Static_assert(sizeof(struct gpurec_exec) == 32 + GPUREC_COMMAND, "exec");
_Static_assert(sizeof(struct gpurec_file) == 32, "file");
_Static_assert(sizeof(struct gpurec_new_file) == 72 + GPUREC_FILE_NAME, "new_file");

#endif
