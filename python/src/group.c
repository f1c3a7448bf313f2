/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: ordered sets of ranks that collectives run over. */
#include "python/src/weft_python.h"

#include <stddef.h>

void wp_lock(pthread_mutex_t *lock)
{
    if (pthread_mutex_trylock(lock) != 0) {
        PyThreadState *thread = PyEval_SaveThread();
        pthread_mutex_lock(lock);
        PyEval_RestoreThread(thread);
    }
}

/* ---- life ---- */
/* The context is being closed: the C group goes, this object stays. */
static void leave(wp_holder_t *holder)
{
    wp_group_t *self = (wp_group_t *)(void *)((char *)holder - offsetof(wp_group_t, holder));
    Py_INCREF((PyObject *)self);
    wp_lock(&self->lock);
    weft_group_t *group = self->group;
    self->group = NULL;
    PyThreadState *thread = PyEval_SaveThread();
    weft_group_leave(group);
    PyEval_RestoreThread(thread);
    pthread_mutex_unlock(&self->lock);
    Py_DECREF((PyObject *)self);
}

wp_group_t *wp_group_new(wp_context_t *context, weft_group_t *group)
{
    PyTypeObject *type = context->state->group_type;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    wp_group_t *self = (wp_group_t *)alloc(type, 0);
    if (self == NULL) {
        weft_group_leave(group);
        return NULL;
    }
    self->context = (wp_context_t *)Py_NewRef((PyObject *)context);
    self->group = group;
    self->rank = weft_group_rank(group);
    self->size = weft_group_size(group);
    pthread_mutex_init(&self->lock, NULL);
    self->holder.lock = &self->lock;
    wp_context_hold(context, &self->holder, leave);
    return self;
}

static int traverse(PyObject *object, visitproc visit, void *arg)
{
    wp_group_t *self = (wp_group_t *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)self->context);
    Py_VISIT((PyObject *)self->stream);
    return 0;
}

static int clear(PyObject *object)
{
    wp_group_t *self = (wp_group_t *)object;
    PyObject *stream = (PyObject *)self->stream, *context = (PyObject *)self->context;
    self->stream = NULL;
    Py_XDECREF(stream);
    if (self->group == NULL) { /* else dealloc needs it */
        self->context = NULL;
        Py_XDECREF(context);
    }
    return 0;
}

/* Calls in flight have references to the group, so there are none. Not collective: rubbish is
 * collected at any time. */
static void dealloc(PyObject *object)
{
    wp_group_t *self = (wp_group_t *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    wp_holder_drop(&self->holder);
    Py_XDECREF((PyObject *)self->stream);
    self->stream = NULL;
    if (self->group != NULL) {
        PyThreadState *thread = PyEval_SaveThread();
        weft_group_leave(self->group);
        PyEval_RestoreThread(thread);
        self->group = NULL;
    }
    pthread_mutex_destroy(&self->lock);
    Py_XDECREF((PyObject *)self->context);
    freefunc give_back = (freefunc)PyType_GetSlot(type, Py_tp_free);
    give_back(object);
    Py_DECREF(type);
}

/* The lock held, or NULL with WeftStateError. */
static weft_group_t *enter(wp_group_t *self)
{
    wp_lock(&self->lock);
    if (self->group == NULL) {
        pthread_mutex_unlock(&self->lock);
        wp_raise_text(self->context->state, WEFT_ERR_STATE,
                      "the group was destroyed, or its context closed");
        return NULL;
    }
    return self->group;
}

static PyObject *group_or_none(wp_group_t *parent, weft_group_t *made)
{
    return made != NULL ? (PyObject *)wp_group_new(parent->context, made) : Py_NewRef(Py_None);
}

/* ---- making others ---- */
/* Integers of 0 .. most in a sequence, on the heap (also none of them); NULL with an exception. */
static uint32_t *numbers(PyObject *object, const char *argument, uint32_t most, uint32_t *out_count)
{
    PyObject *list = PySequence_List(object);
    if (list == NULL) {
        return NULL;
    }
    Py_ssize_t count = PyList_Size(list);
    uint32_t *values =
        count < UINT32_MAX ? PyMem_Malloc((size_t)(count + 1) * sizeof *values) : NULL;
    if (values == NULL) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; values != NULL && i < count; i++) {
        if (wp_index(PyList_GetItem(list, i), argument, most, &values[i]) < 0) {
            PyMem_Free(values);
            values = NULL;
        }
    }
    Py_DECREF(list);
    *out_count = (uint32_t)count;
    return values;
}

/* Different ranks of a group of size, on the heap; NULL with an exception. */
static uint32_t *read_ranks(PyObject *object, uint32_t size, uint32_t *out_count)
{
    uint32_t *ranks = numbers(object, "ranks", size - 1, out_count);
    if (ranks != NULL && (*out_count == 0 || *out_count > size)) {
        PyErr_Format(PyExc_ValueError, "ranks: %u of a group of %u", (unsigned)*out_count,
                     (unsigned)size);
        PyMem_Free(ranks);
        return NULL;
    }
    for (uint32_t i = 0; ranks != NULL && i < *out_count; i++) {
        for (uint32_t k = 0; k < i; k++) {
            if (ranks[k] == ranks[i]) {
                PyErr_Format(PyExc_ValueError, "ranks: %u is there twice", (unsigned)ranks[i]);
                PyMem_Free(ranks);
                return NULL;
            }
        }
    }
    return ranks;
}

static PyObject *new_group(PyObject *module, PyObject *const *args, Py_ssize_t count,
                           PyObject *keywords)
{
    static const char *const names[] = {"ranks", "group", NULL};
    PyObject *places[2];
    wp_state_t *state = wp_state_of(module);
    if (wp_parse("new_group", args, count, keywords, names, 1, 2, places) < 0) {
        return NULL;
    }
    wp_group_t *parent = wp_group_of(state, places[1]);
    uint32_t number = 0;
    uint32_t *ranks = parent != NULL ? read_ranks(places[0], parent->size, &number) : NULL;
    if (ranks == NULL) {
        return NULL;
    }
    Py_INCREF((PyObject *)parent);
    PyObject *result = NULL;
    weft_group_t *group = enter(parent), *made = NULL;
    if (group != NULL) {
        PyThreadState *thread = PyEval_SaveThread();
        weft_status_t status = weft_group_create_ranks(group, ranks, number, &made);
        pthread_mutex_unlock(&parent->lock);
        PyEval_RestoreThread(thread);
        result = status < 0 ? wp_raise(state, status) : group_or_none(parent, made);
    }
    PyMem_Free(ranks);
    Py_DECREF((PyObject *)parent);
    return result;
}

static PyObject *split(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"color", "key", NULL};
    wp_group_t *self = (wp_group_t *)object;
    PyObject *color_object;
    long long key = self->rank;
    uint32_t color = WEFT_COLOR_NONE;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|L:split", names, &color_object, &key) ||
        (color_object != Py_None && wp_index(color_object, "color", INT32_MAX, &color) < 0)) {
        return NULL;
    }
    weft_group_t *group = enter(self), *made = NULL;
    if (group == NULL) {
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    weft_status_t status = weft_group_split(group, color, key, &made);
    pthread_mutex_unlock(&self->lock);
    PyEval_RestoreThread(thread);
    return status < 0 ? wp_raise(self->context->state, status) : group_or_none(self, made);
}

static PyObject *duplicate(PyObject *object, PyObject *unused)
{
    (void)unused;
    wp_group_t *self = (wp_group_t *)object;
    weft_group_t *group = enter(self), *made = NULL;
    if (group == NULL) {
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    weft_status_t status = weft_group_duplicate(group, &made);
    pthread_mutex_unlock(&self->lock);
    PyEval_RestoreThread(thread);
    return status < 0 ? wp_raise(self->context->state, status) : group_or_none(self, made);
}

static PyObject *destroy(PyObject *object, PyObject *unused)
{
    (void)unused;
    wp_group_t *self = (wp_group_t *)object;
    if (self == self->context->world) {
        return wp_raise_text(self->context->state, WEFT_ERR_STATE,
                             "the world goes with its context: weft.finalize() or Context.close()");
    }
    wp_lock(&self->lock);
    weft_group_t *group = self->group;
    self->group = NULL;
    wp_holder_drop(&self->holder);
    PyThreadState *thread = PyEval_SaveThread();
    weft_group_destroy(group);
    pthread_mutex_unlock(&self->lock);
    PyEval_RestoreThread(thread);
    Py_RETURN_NONE;
}

/* ---- settings ---- */
static PyObject *none_or_raise(wp_group_t *self, weft_status_t status)
{
    return status < 0 ? wp_raise(self->context->state, status) : Py_NewRef(Py_None);
}

static PyObject *set_order(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"order", "block_sizes", NULL};
    static const char *const words[] = {"tree", "blocks", "any"};
    wp_group_t *self = (wp_group_t *)object;
    PyObject *word, *blocks = Py_None;
    uint32_t *sizes = NULL, count = 0;
    int order = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "U|O:set_order", names, &word, &blocks)) {
        return NULL;
    }
    while (order < 3 && PyUnicode_CompareWithASCIIString(word, words[order]) != 0) {
        order++;
    }
    if (order == 3) {
        PyErr_Format(PyExc_ValueError, "order: %R is none of 'tree', 'blocks', 'any'", word);
        return NULL;
    }
    if (blocks != Py_None) {
        sizes = numbers(blocks, "block_sizes", self->size, &count);
        if (sizes == NULL) {
            return NULL;
        }
    }
    weft_group_t *group = enter(self);
    weft_status_t status = WEFT_OK;
    if (group != NULL) {
        PyThreadState *thread = PyEval_SaveThread();
        status = weft_group_set_order(group, (weft_order_t)order, sizes, count);
        pthread_mutex_unlock(&self->lock);
        PyEval_RestoreThread(thread);
    }
    PyMem_Free(sizes);
    return group != NULL ? none_or_raise(self, status) : NULL;
}

static bool collective_of(const char *word, weft_collective_t *out)
{
    static const weft_collective_t all[] = {
#define WP_OP(name, value, text, reduces, rooted) WEFT_OP_##name,
        WEFT_COLLECTIVE_MAP(WP_OP)
#undef WP_OP
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const char *a = weft_collective_name(all[i]);
        size_t k = 0;
        while (a[k] != '\0' && a[k] == word[k]) {
            k++;
        }
        if (a[k] == word[k]) {
            *out = all[i];
            return true;
        }
    }
    return false;
}

static PyObject *set_algorithm(PyObject *object, PyObject *args)
{
    wp_group_t *self = (wp_group_t *)object;
    const char *op_name, *name;
    weft_collective_t op;
    if (!PyArg_ParseTuple(args, "sz:set_algorithm", &op_name, &name)) {
        return NULL;
    }
    if (!collective_of(op_name, &op)) {
        PyErr_Format(PyExc_ValueError, "op: '%s' is no collective, such as 'all_reduce'", op_name);
        return NULL;
    }
    weft_group_t *group = enter(self);
    if (group == NULL) {
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    weft_status_t status = weft_group_set_algorithm(group, op, name);
    pthread_mutex_unlock(&self->lock);
    PyEval_RestoreThread(thread);
    return none_or_raise(self, status);
}

static PyObject *check(PyObject *object, PyObject *unused)
{
    (void)unused;
    wp_group_t *self = (wp_group_t *)object;
    weft_group_t *group = enter(self);
    if (group == NULL) {
        return NULL;
    }
    PyThreadState *thread = PyEval_SaveThread();
    weft_status_t status = weft_group_status(group);
    pthread_mutex_unlock(&self->lock);
    PyEval_RestoreThread(thread);
    return none_or_raise(self, status);
}

/* ---- attributes ---- */
static PyObject *get_rank(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(((wp_group_t *)object)->rank);
}

static PyObject *get_size(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(((wp_group_t *)object)->size);
}

static PyObject *get_context(PyObject *object, void *unused)
{
    (void)unused;
    return Py_NewRef((PyObject *)((wp_group_t *)object)->context);
}

static PyObject *get_ranks(PyObject *object, void *unused)
{
    (void)unused;
    wp_group_t *self = (wp_group_t *)object;
    weft_group_t *group = enter(self);
    PyObject *list = group != NULL ? PyList_New((Py_ssize_t)self->size) : NULL;
    for (uint32_t i = 0; list != NULL && i < self->size; i++) {
        PyObject *rank = PyLong_FromUnsignedLong(weft_group_world_rank(group, i));
        if (rank == NULL || PyList_SetItem(list, (Py_ssize_t)i, rank) < 0) {
            Py_CLEAR(list);
        }
    }
    if (group != NULL) {
        pthread_mutex_unlock(&self->lock);
    }
    return list;
}

/* How the last call went: which = 0 its algorithm, else its path. */
static PyObject *get_last(PyObject *object, void *which)
{
    wp_group_t *self = (wp_group_t *)object;
    weft_group_t *group = enter(self);
    if (group == NULL) {
        return NULL;
    }
    const char *text =
        which == NULL ? weft_group_last_algorithm(group) : weft_group_last_path(group);
    PyObject *result = PyUnicode_FromString(text);
    pthread_mutex_unlock(&self->lock);
    return result;
}

static PyObject *repr(PyObject *object)
{
    wp_group_t *self = (wp_group_t *)object;
    return PyUnicode_FromFormat("<weft.Group rank %u of %u%s>", (unsigned)self->rank,
                                (unsigned)self->size, self->group != NULL ? "" : ", destroyed");
}

static PyMethodDef methods[] = {
    {"destroy", destroy, METH_NOARGS,
     "destroy($self)\n--\n\n"
     "Gives the group back. Collective over it: waits until all its ranks got here. A group that "
     "is only dropped\n"
     "keeps its share of the context's memory until the end."},
    {"duplicate", duplicate, METH_NOARGS,
     "duplicate($self)\n--\n\n"
     "A Group of the same ranks with calls of its own, for another thread. Collective over the "
     "group."},
    {"split", (PyCFunction)(void (*)(void))split, METH_VARARGS | METH_KEYWORDS,
     "split($self, color, key=None)\n--\n\n"
     "One Group per color, of the ranks that gave it, ordered by key (None: the rank) and then by "
     "rank; color None:\n"
     "no group for this rank, which gets None. Collective over the group."},
    {"set_order", (PyCFunction)(void (*)(void))set_order, METH_VARARGS | METH_KEYWORDS,
     "set_order($self, order, block_sizes=None)\n--\n\n"
     "In which order reductions combine ranks, and so their bits, from the next call on: 'tree' "
     "(the default),\n"
     "'blocks' (of block_sizes consecutive ranks, then over blocks), 'any' (whatever is fastest; "
     "bits then depend on\n"
     "the algorithm). All ranks set it alike, between the same calls."},
    {"set_algorithm", set_algorithm, METH_VARARGS,
     "set_algorithm($self, op, name, /)\n--\n\n"
     "Carries out op ('all_reduce', ..) by the algorithm of that name (`weft algos` lists them) "
     "from the next call\n"
     "on; None: chosen by cost. All ranks set it alike. Raises WeftArgumentError when there is "
     "none such."},
    {"check", check, METH_NOARGS,
     "check($self)\n--\n\n"
     "Raises the error that broke the group, which every call returns from then on; returns None "
     "when it is well."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"rank", get_rank, NULL, "This process's number in the group.", NULL},
    {"size", get_size, NULL, "Ranks in the group.", NULL},
    {"ranks", get_ranks, NULL, "Their numbers in the world, a list.", NULL},
    {"context", get_context, NULL, "The Context that it belongs to.", NULL},
    {"last_algorithm", get_last, NULL,
     "The algorithm of the last call here; 'none' before the first.", NULL},
    {"last_path", get_last, NULL,
     "How the last call's data went: 'posting', 'direct', 'attached', 'staged', 'schedule', "
     "'none'.",
     (void *)1},
    {NULL, NULL, NULL, NULL, NULL},
};

static const char type_doc[] =
    "An ordered set of ranks that collectives run over; made by new_group, split or duplicate.\n\n"
    "All ranks of a group issue its calls in the same order. Threads that issue calls at the same "
    "time use groups\n"
    "of their own (duplicate), else their order, and so who meets whom, is up to chance.";

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)type_doc},
    {Py_tp_dealloc, dealloc},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_repr, repr},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {0, NULL},
};

static PyType_Spec spec = {
    "weft.Group", sizeof(wp_group_t), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

/* ---- functions ---- */
static wp_group_t *only_group(PyObject *module, const char *function, PyObject *const *args,
                              Py_ssize_t count, PyObject *keywords)
{
    static const char *const names[] = {"group", NULL};
    PyObject *places[1];
    if (wp_parse(function, args, count, keywords, names, 0, 1, places) < 0) {
        return NULL;
    }
    return wp_group_of(wp_state_of(module), places[0]);
}

static PyObject *get_rank_of(PyObject *module, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords)
{
    wp_group_t *group = only_group(module, "get_rank", args, count, keywords);
    return group != NULL ? PyLong_FromUnsignedLong(group->rank) : NULL;
}

static PyObject *get_world_size(PyObject *module, PyObject *const *args, Py_ssize_t count,
                                PyObject *keywords)
{
    wp_group_t *group = only_group(module, "get_world_size", args, count, keywords);
    return group != NULL ? PyLong_FromUnsignedLong(group->size) : NULL;
}

static PyMethodDef functions[] = {
    {"new_group", (PyCFunction)(void (*)(void))new_group, METH_FASTCALL | METH_KEYWORDS,
     "new_group($module, ranks, group=None)\n--\n\n"
     "The Group of these ranks of group (None: the world), numbered in this order; None on ranks "
     "that are not in it.\n\n"
     "Collective over group: all its ranks pass the same list. Raises ValueError (a rank that "
     "there is not, or twice),\n"
     "WeftMismatchError when lists differ, WeftNoMemoryError when too many groups are alive."},
    {"get_rank", (PyCFunction)(void (*)(void))get_rank_of, METH_FASTCALL | METH_KEYWORDS,
     "get_rank($module, group=None)\n--\n\nThis process's number in group (None: the world)."},
    {"get_world_size", (PyCFunction)(void (*)(void))get_world_size, METH_FASTCALL | METH_KEYWORDS,
     "get_world_size($module, group=None)\n--\n\nRanks in group (None: the world)."},
    {NULL, NULL, 0, NULL},
};

int wp_group_init(PyObject *module, wp_state_t *state)
{
    state->group_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    if (state->group_type == NULL || PyModule_AddType(module, state->group_type) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
