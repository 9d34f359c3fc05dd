/*
 * The CUDA programs for a recording with --stacks: the same, and before an outermost call of the selected functions its
 * stack (stacks.h). A recording without stacks loads programs that have none of this.
 */
#define STACKS 1
#include "cuda.bpf.c"
