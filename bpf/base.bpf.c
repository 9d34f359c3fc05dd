/*
 * The maps that the programs share, made before any of them is loaded: then the kernel can look at several objects at
 * one time. No programs.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include "gpurec.h"
#include "maps.h"
#include "following.h"
