/* The stand-in library's talk with a stand-in driver: see door.c. All but door_on do nothing unless it says so. */
#ifndef DOOR_H
#define DOOR_H

#include "driver.h"

bool door_on(void);
CUresult door_init(void);
void door_context_new(const struct context *context);
void door_context_end(const struct context *context);
CUresult door_memory_new(uint64_t start, uint64_t bytes, uint64_t arena);
void door_memory_end(uint64_t start, uint64_t bytes);
void door_memory_refused(uint64_t bytes);
CUresult door_managed_new(uint64_t start, uint64_t bytes);
void door_managed_end(uint64_t start, uint64_t bytes);
void door_migrate(uint64_t start, uint64_t bytes);
CUresult door_register(uint64_t start, uint64_t bytes);
void door_unregister(uint64_t start);
void door_wait(int64_t until);

#endif
