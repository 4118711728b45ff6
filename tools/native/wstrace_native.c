/* The look-up of a request that was seen before, in C: `wstrace/recorder/native.py` loads it.

   It decides nothing of its own. A cell of a Table stands for one key of the recorder's dict of
   hot entries, and holds that very Entry; whether the entry fits the callers is read from the
   entry, as the wrapper in Python reads it. All else (a new key, a way that has to be asked, a
   size that is no plain integer, an error) is left to that wrapper: the answer is then False.

   Calls are counted in the cell and moved into the entry by settle() and clear(). */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <structmember.h>

#ifdef Py_GIL_DISABLED
#error "a Table relies on the GIL: there is none in this build of Python"
#endif

#ifndef Py_T_OBJECT_EX
#define Py_T_OBJECT_EX T_OBJECT_EX
#endif

typedef struct {
    PyCodeObject *code; /* NULL: free */
    PyObject *entry;
    Py_ssize_t bytes;
    Py_ssize_t slot;
    Py_ssize_t calls;
    int place;
} Cell;

typedef struct {
    PyObject_HEAD
    Cell *cells;
    size_t size; /* a power of two, or 0 */
    size_t used;
    size_t version; /* changes whenever a cell may have moved */
    PyTypeObject *kind; /* Entry */
    PyObject *manager; /* ManagerState, whose slot_of reads a slot */
    PyObject *getframe;
    PyObject *depth;
    Py_ssize_t calls, caller, place, outer, outer_place, slot_of; /* offsets of fields */
} Table;

typedef struct {
    PyTypeObject *table;
} Module;

static PyObject *
field(PyObject *owner, Py_ssize_t offset)
{
    return *(PyObject **)((char *)owner + offset);
}

/* Where objects of `kind` have the slot `name`; -1 with an error where it is none. */
static Py_ssize_t
offset_of(PyTypeObject *kind, const char *name)
{
    Py_ssize_t offset = -1;
    PyObject *found = PyObject_GetAttrString((PyObject *)kind, name);
    if (found == NULL)
        return -1;
    if (Py_IS_TYPE(found, &PyMemberDescr_Type)) {
        PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
        if (member->type == Py_T_OBJECT_EX)
            offset = member->offset;
    }
    Py_DECREF(found);
    if (offset < 0)
        PyErr_Format(PyExc_TypeError, "%s.%s is no slot", kind->tp_name, name);
    return offset;
}

static size_t
start_of(const Table *table, const PyCodeObject *code, int place, Py_ssize_t bytes,
         Py_ssize_t slot)
{
    uint64_t mixed = ((uint64_t)(uintptr_t)code >> 4) * UINT64_C(0x9E3779B97F4A7C15);
    mixed = (mixed ^ (uint64_t)bytes) * UINT64_C(0xC2B2AE3D27D4EB4F);
    mixed = (mixed ^ (uint64_t)place ^ ((uint64_t)slot << 32)) * UINT64_C(0x165667B19E3779F9);
    return (size_t)(mixed >> 32) & (table->size - 1);
}

/* The cell of a key, or the free one where it belongs; there always is a free one. */
static Cell *
cell_of(const Table *table, const PyCodeObject *code, int place, Py_ssize_t bytes,
        Py_ssize_t slot)
{
    size_t at = start_of(table, code, place, bytes, slot);
    for (;;) {
        Cell *cell = &table->cells[at];
        if (cell->code == NULL || (cell->code == code && cell->place == place &&
                                   cell->bytes == bytes && cell->slot == slot))
            return cell;
        at = (at + 1) & (table->size - 1);
    }
}

static int
settle_cell(const Table *table, Cell *cell)
{
    PyObject **field_of_calls, *before, *more, *after;
    if (cell->code == NULL || cell->calls == 0)
        return 0;
    field_of_calls = (PyObject **)((char *)cell->entry + table->calls);
    before = *field_of_calls;
    if (before == NULL || !PyLong_CheckExact(before)) {
        PyErr_SetString(PyExc_TypeError, "an entry's calls are no integer");
        return -1;
    }
    more = PyLong_FromSsize_t(cell->calls);
    if (more == NULL)
        return -1;
    after = PyNumber_Add(before, more);
    Py_DECREF(more);
    if (after == NULL)
        return -1;
    cell->calls = 0;
    *field_of_calls = after;
    Py_DECREF(before);
    return 0;
}

static int
settle_all(const Table *table)
{
    for (size_t at = 0; at < table->size; at++)
        if (settle_cell(table, &table->cells[at]) < 0)
            return -1;
    return 0;
}

/* Empty the table. The cells are out of it before a reference is given back, since that may
   run code. */
static void
empty(Table *table)
{
    Cell *cells = table->cells;
    size_t size = table->size;
    table->cells = NULL;
    table->size = table->used = 0;
    table->version++;
    for (size_t at = 0; at < size; at++) {
        Py_XDECREF(cells[at].code);
        Py_XDECREF(cells[at].entry);
    }
    PyMem_Free(cells);
}

static int
grow(Table *table)
{
    Table larger = *table;
    larger.size = table->size ? 2 * table->size : 64;
    larger.cells = PyMem_Calloc(larger.size, sizeof(Cell));
    if (larger.cells == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t at = 0; at < table->size; at++) {
        Cell *cell = &table->cells[at];
        if (cell->code != NULL)
            *cell_of(&larger, cell->code, cell->place, cell->bytes, cell->slot) = *cell;
    }
    PyMem_Free(table->cells);
    table->cells = larger.cells;
    table->size = larger.size;
    table->version++;
    return 0;
}

/* The value of a plain integer in `into`; 0 for all else, with no error set. */
static int
plain(PyObject *number, Py_ssize_t *into)
{
    if (number == NULL || !PyLong_CheckExact(number))
        return 0;
    *into = PyLong_AsSsize_t(number);
    if (*into == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return 1;
}

PyDoc_STRVAR(put_doc, "put($self, code, place, bytes, slot, entry, /)\n--\n\n"
                      "Let `seen` find `entry`, in the place of one that has the same key.");

static PyObject *
table_put(Table *table, PyObject *const *args, Py_ssize_t count)
{
    Py_ssize_t place, bytes, slot;
    PyObject *entry, *before;
    Cell *cell;
    if (count != 5 || !PyCode_Check(args[0]) || Py_TYPE(args[4]) != table->kind) {
        PyErr_SetString(PyExc_TypeError, "put takes a code, three numbers and an entry");
        return NULL;
    }
    if (!plain(args[1], &place) || !plain(args[2], &bytes) || !plain(args[3], &slot) ||
        place < INT32_MIN || place > INT32_MAX)
        Py_RETURN_NONE; /* the dict alone knows such a key */
    if (2 * (table->used + 1) > table->size && grow(table) < 0)
        return NULL;
    cell = cell_of(table, (PyCodeObject *)args[0], (int)place, bytes, slot);
    if (settle_cell(table, cell) < 0)
        return NULL;
    entry = Py_NewRef(args[4]);
    before = cell->entry;
    cell->entry = entry;
    if (cell->code == NULL) {
        cell->code = (PyCodeObject *)Py_NewRef(args[0]);
        cell->place = (int)place;
        cell->bytes = bytes;
        cell->slot = slot;
        table->used++;
    }
    table->version++;
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(settle_doc, "settle($self, /)\n--\n\nMove what was counted into the entries.");

static PyObject *
table_settle(Table *table, PyObject *Py_UNUSED(ignored))
{
    if (settle_all(table) < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(clear_doc, "clear($self, /)\n--\n\n"
                        "Move what was counted into the entries, and forget them.");

static PyObject *
table_clear(Table *table, PyObject *Py_UNUSED(ignored))
{
    int settled = settle_all(table);
    empty(table);
    if (settled < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"entry", "manager", "depth", NULL};
    PyObject *kind, *manager, *depth;
    Table *table;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OO!:Table", names, &PyType_Type, &kind,
                                     &manager, &PyLong_Type, &depth))
        return NULL;
    table = (Table *)type->tp_alloc(type, 0);
    if (table == NULL)
        return NULL;
    table->kind = (PyTypeObject *)Py_NewRef(kind);
    table->manager = Py_NewRef(manager);
    table->depth = Py_NewRef(depth);
    table->getframe = PySys_GetObject("_getframe"); /* borrowed */
    Py_XINCREF(table->getframe);
    if (table->getframe == NULL)
        PyErr_SetString(PyExc_RuntimeError, "there is no sys._getframe");
    if (table->getframe == NULL || (table->calls = offset_of(table->kind, "calls")) < 0 ||
        (table->caller = offset_of(table->kind, "caller")) < 0 ||
        (table->place = offset_of(table->kind, "place")) < 0 ||
        (table->outer = offset_of(table->kind, "outer")) < 0 ||
        (table->outer_place = offset_of(table->kind, "outer_place")) < 0 ||
        (table->slot_of = offset_of(Py_TYPE(manager), "slot_of")) < 0) {
        Py_DECREF(table);
        return NULL;
    }
    return (PyObject *)table;
}

static int
table_traverse(Table *table, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(table));
    Py_VISIT(table->kind);
    Py_VISIT(table->manager);
    Py_VISIT(table->getframe);
    for (size_t at = 0; at < table->size; at++) {
        Py_VISIT(table->cells[at].code);
        Py_VISIT(table->cells[at].entry);
    }
    return 0;
}

/* What `seen` needs goes with the table itself: a cycle's other end may still call it. */
static int
table_tp_clear(Table *table)
{
    empty(table);
    return 0;
}

static void
table_dealloc(Table *table)
{
    PyTypeObject *type = Py_TYPE(table);
    PyObject_GC_UnTrack(table);
    empty(table);
    Py_XDECREF(table->kind);
    Py_XDECREF(table->manager);
    Py_XDECREF(table->getframe);
    Py_XDECREF(table->depth);
    type->tp_free(table);
    Py_DECREF(type);
}

static Py_ssize_t
table_length(Table *table)
{
    return (Py_ssize_t)table->used;
}

static PyMethodDef table_methods[] = {
    {"put", (PyCFunction)(void (*)(void))table_put, METH_FASTCALL, put_doc},
    {"settle", (PyCFunction)(void (*)(void))table_settle, METH_NOARGS, settle_doc},
    {"clear", (PyCFunction)(void (*)(void))table_clear, METH_NOARGS, clear_doc},
    {NULL, NULL, 0, NULL},
};

PyDoc_STRVAR(table_doc, "Table(entry, manager, depth)\n--\n\n"
                        "Hot entries of the class `entry` by code, place, bytes and slot.");

static PyType_Slot table_slots[] = {
    {Py_tp_doc, (void *)table_doc},
    {Py_tp_new, (void *)table_new},
    {Py_tp_traverse, (void *)table_traverse},
    {Py_tp_clear, (void *)table_tp_clear},
    {Py_tp_dealloc, (void *)table_dealloc},
    {Py_tp_methods, (void *)table_methods},
    {Py_sq_length, (void *)table_length},
    {0, NULL},
};

static PyType_Spec table_spec = {
    .name = "wstrace_native.Table",
    .basicsize = sizeof(Table),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = table_slots,
};

/* An error of what was asked here leaves the request to the wrapper in Python, which meets it
   again; what is no Exception (a KeyboardInterrupt) goes on. -1 where it does. */
static int
left_to_python(void)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyErr_Clear();
    return 0;
}

/* Whether the next frame outward makes its call at this place of this code. Moves `frame`
   there; it is NULL where there is no further one. */
static int
called_from(PyFrameObject **frame, PyObject *code, PyObject *place)
{
    Py_ssize_t wanted;
    PyFrameObject *inner = *frame;
    PyCodeObject *found;
    *frame = PyFrame_GetBack(inner);
    Py_DECREF(inner);
    if (*frame == NULL || !plain(place, &wanted))
        return 0;
    found = PyFrame_GetCode(*frame);
    Py_DECREF(found); /* its frame holds it */
    return (PyObject *)found == code && PyFrame_GetLasti(*frame) == wanted;
}

/* Whether the entry belongs to the calls that lead to `frame`, whose reference it takes. */
static int
on_way(const Table *table, PyObject *entry, PyFrameObject *frame)
{
    PyObject *caller = field(entry, table->caller), *outer = field(entry, table->outer);
    int fits = caller == Py_None;
    if (!fits && caller != NULL && outer != NULL) {
        fits = called_from(&frame, caller, field(entry, table->place));
        if (fits && outer != Py_None)
            fits = called_from(&frame, outer, field(entry, table->outer_place));
    }
    Py_XDECREF(frame);
    return fits;
}

static int
count_if_seen(Table *table, PyObject *manager, PyObject *required)
{
    Py_ssize_t bytes, slot = 0;
    size_t version;
    PyObject *slot_of = field(table->manager, table->slot_of), *entry;
    PyFrameObject *frame;
    PyCodeObject *code;
    Cell *cell;
    int fits;
    if (table->size == 0 || !plain(required, &bytes) || slot_of == NULL)
        return 0;
    if (slot_of != Py_None) {
        PyObject *found;
        int is_plain;
        Py_INCREF(slot_of);
        found = PyObject_Vectorcall(slot_of, &manager, 1, NULL);
        Py_DECREF(slot_of);
        if (found == NULL)
            return left_to_python();
        is_plain = plain(found, &slot);
        Py_DECREF(found);
        if (!is_plain)
            return 0;
    }
    frame = (PyFrameObject *)PyObject_Vectorcall(table->getframe, &table->depth, 1, NULL);
    if (frame == NULL)
        return left_to_python();
    if (!PyFrame_Check(frame) || table->size == 0) {
        Py_DECREF(frame);
        return 0;
    }
    code = PyFrame_GetCode(frame);
    cell = cell_of(table, code, PyFrame_GetLasti(frame), bytes, slot);
    Py_DECREF(code);
    if (cell->code == NULL) {
        Py_DECREF(frame);
        return 0;
    }
    /* To make a frame object of a caller may collect garbage, which may run anything. */
    version = table->version;
    entry = Py_NewRef(cell->entry);
    fits = on_way(table, entry, frame) && table->version == version;
    if (fits)
        cell->calls++;
    Py_DECREF(entry);
    return fits;
}

PyDoc_STRVAR(seen_doc, "seen($module, table, manager, required_bytes, /)\n--\n\n"
                       "Whether the request of the frame above was seen; it is counted then.");

static PyObject *
native_seen(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Module *own = PyModule_GetState(module);
    int found;
    if (count != 3 || !Py_IS_TYPE(args[0], own->table)) {
        PyErr_SetString(PyExc_TypeError, "seen takes a Table, a manager and bytes");
        return NULL;
    }
    found = count_if_seen((Table *)args[0], args[1], args[2]);
    if (found < 0)
        return NULL;
    return PyBool_FromLong(found);
}

static int
native_exec(PyObject *module)
{
    Module *own = PyModule_GetState(module);
    own->table = (PyTypeObject *)PyType_FromModuleAndSpec(module, &table_spec, NULL);
    if (own->table == NULL || PyModule_AddType(module, own->table) < 0)
        return -1;
    return PyModule_AddStringConstant(module, "__version__", WSTRACE_VERSION);
}

static int
native_traverse(PyObject *module, visitproc visit, void *arg)
{
    Py_VISIT(((Module *)PyModule_GetState(module))->table);
    return 0;
}

static int
native_clear(PyObject *module)
{
    Py_CLEAR(((Module *)PyModule_GetState(module))->table);
    return 0;
}

static PyMethodDef native_methods[] = {
    {"seen", (PyCFunction)(void (*)(void))native_seen, METH_FASTCALL, seen_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot native_slots[] = {
    {Py_mod_exec, (void *)native_exec},
    {0, NULL},
};

static struct PyModuleDef native_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "wstrace_native",
    .m_doc = "The look-up of a seen request; see wstrace/recorder/native.py.",
    .m_size = sizeof(Module),
    .m_methods = native_methods,
    .m_slots = native_slots,
    .m_traverse = native_traverse,
    .m_clear = native_clear,
};

PyMODINIT_FUNC
PyInit_wstrace_native(void)
{
    return PyModuleDef_Init(&native_module);
}
