/*
 * The maps that the programs share. They are created before any program is loaded: then Linux can verify several
 * objects at the same time. No programs.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include "gpurec.h"
#include "sizes.h"
#include "maps.h"
#include "following.h"
