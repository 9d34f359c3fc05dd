/*
 * The program of PyTorch's blocks for a recording with --stacks: the same, and before a block its stack (stacks.h).
 */
#define STACKS 1
#include "block.bpf.c"
