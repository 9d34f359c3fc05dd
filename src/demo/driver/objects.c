/* Stands in for the driver's handle tables: a handle that was never given out,
 * was destroyed, or is of another kind is found out and not followed. */
#include "driver.h"

#include <stdlib.h>

struct entry {
    struct entry *next;
    enum kind kind;
    _Alignas(16) char object[];
};

static struct entry *table[1024];
pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

void gate_lock(void)
{
    pthread_mutex_lock(&gate);
}

void gate_unlock(void)
{
    pthread_mutex_unlock(&gate);
}

static struct entry **bucket(handle h)
{
    return &table[((uintptr_t)h >> 4) * 0x9e3779b97f4a7c15ULL >> 54];
}

void *object_new(enum kind kind, size_t size)
{
    struct entry *entry = calloc(1, sizeof *entry + size);
    if (!entry)
        return NULL;
    entry->kind = kind;
    struct entry **head = bucket(entry->object);
    entry->next = *head;
    *head = entry;
    return entry->object;
}

bool object_is(handle h, enum kind kind)
{
    for (struct entry *e = *bucket(h); e; e = e->next)
        if (e->object == h)
            return e->kind == kind;
    return false;
}

void object_forget(handle h)
{
    for (struct entry **link = bucket(h); *link; link = &(*link)->next)
        if ((*link)->object == h) {
            /* Not freed: another thread may be waiting on it, and the test bed
             * is short-lived. A handle is never given out twice, either. */
            *link = (*link)->next;
            return;
        }
}

void object_each(enum kind kind, bool (*visit)(void *object, void *data), void *data)
{
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        for (struct entry *e = table[i]; e; e = e->next)
            if (e->kind == kind && !visit(e->object, data))
                return;
}
