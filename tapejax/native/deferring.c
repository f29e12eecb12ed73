/* Deferring a call: `PlainCall`, `apply_plan` and `new_block` in ops/lift.py, `Block` in fusion/block.py.

Until a call is deferred nothing has changed but that its block knows what the call reads, which Python would find just
so. From the last look at the block to the append that defers the call nothing is allocated, so neither a finalizer nor a
signal handler comes in between.
*/

#include "shared.h"

#define MOST 16 /* operands of a call that is deferred here */

/* The slot of what is no pending result of the block. NULL without an error: it cannot be deferred. */
static PyObject *bring(PyObject *block, PyObject *tensor)
{
    PyObject *value = GET(tensor, Tensor_held), *slot = NULL;
    PyObject *outside = GET(block, Block_outside), *brought = GET(block, Block_brought);
    if (GET(tensor, Tensor_slot) == Py_None && GET(block, Block_several) == Py_False) {
        int needs = GET(GET(tensor, Tensor_kind), Kind_requires_grad) == Py_True;
        PyObject *handle = needs ? Py_NewRef(number_of(tensor)) : PyLong_FromSsize_t(-(Py_ssize_t)value);
        if (handle == NULL)
            return NULL;
        PyObject *found = PyDict_GetItemWithError(outside, handle);
        if (found != NULL) {
            Py_ssize_t place = ~PyLong_AsSsize_t(found);
            if (GET(PyList_GET_ITEM(brought, place), Tensor_held) == value)
                slot = Py_NewRef(found);
        }
        else if (!PyErr_Occurred() && PySet_Contains(our.CONCRETE, (PyObject *)Py_TYPE(value)) == 1) {
            slot = PyLong_FromSsize_t(~PyList_GET_SIZE(brought));
            if (slot != NULL && (PyList_Append(brought, tensor) < 0 || PyDict_SetItem(outside, handle, slot) < 0))
                Py_CLEAR(slot);
        }
        Py_DECREF(handle);
        if (slot != NULL || PyErr_Occurred())
            return slot;
    }
    slot = PyObject_CallMethodOneArg(block, word.bring, tensor);
    if (slot == Py_None)
        Py_CLEAR(slot);
    return slot;
}

/* Of a call that is recorded: the numbers of the operands that need no gradient; None if all do. */
static PyObject *numbers_of_others(PyObject *plan, PyObject *const *tensors, Py_ssize_t n)
{
    if (GET(plan, Plan_all_wrt) == Py_True)
        return Py_NewRef(Py_None);
    PyObject *wrt = GET(plan, Plan_wrt), *found = PyList_New(0), *others = NULL;
    Py_ssize_t i = 0;
    while (found != NULL && i < n &&
           (PyTuple_GET_ITEM(wrt, i) == Py_True || PyList_Append(found, number_of(tensors[i])) == 0))
        i++;
    if (i == n)
        others = PyList_AsTuple(found);
    Py_XDECREF(found);
    return others;
}

/* A block of its own for a tape that has none: `Block.__init__`. NULL without an error: Python makes it.

settings: of a plan; if they are jax's now, they are the block's.
*/
static PyObject *made_block(PyObject *tape, PyObject *settings)
{
    PyObject *values = PyObject_GetAttr(settings, word.values), *limit = PyObject_GetAttr(our.block_module, word.LIMIT);
    PyObject *device = setting(1), *several = PyObject_CallNoArgs(our.several_devices), *block = NULL;
    PyObject *lock = PyObject_CallNoArgs(our.RLock), *weak = PyObject_GetAttr(tape, word.weak);
    if (PyErr_Occurred() || are_set(our.all_settings, values) != 1 || (block = NEW(Block)) == NULL)
        goto end;
    GET(block, Block_epoch) = Py_NewRef(GET(tape, Tape_epoch));
    GET(block, Block_weak) = Py_NewRef(weak);
    GET(block, Block_home) = PyWeakref_NewRef(tape, NULL);
    GET(block, Block_logged) = Py_NewRef(Py_False);
    GET(block, Block_calls) = PyList_New(0);
    GET(block, Block_brought) = PyList_New(0);
    GET(block, Block_outside) = PyDict_New();
    GET(block, Block_closed) = Py_NewRef(Py_False);
    GET(block, Block_sealed) = Py_NewRef(Py_None);
    GET(block, Block_lock) = Py_NewRef(lock);
    GET(block, Block_last) = PyLong_FromSsize_t(PyLong_AsSsize_t(limit) - 1);
    GET(block, Block_settings) = Py_NewRef(settings);
    GET(block, Block_state) = PyTuple_Pack(5, PyTuple_GET_ITEM(values, 0), device, PyTuple_GET_ITEM(values, 1),
                                           PyTuple_GET_ITEM(values, 2), PyTuple_GET_ITEM(values, 3));
    GET(block, Block_several) = Py_NewRef(several);
    GET(block, Block_devices) = Py_NewRef(Py_None);
    if (PyErr_Occurred() || GET(tape, Tape_block) != Py_None) /* the last: by a finalizer, meanwhile */
        Py_CLEAR(block);
    else
        PUT(tape, Tape_block, Py_NewRef(block));
end:
    Py_XDECREF(values);
    Py_XDECREF(limit);
    Py_XDECREF(device);
    Py_XDECREF(several);
    Py_XDECREF(lock);
    Py_XDECREF(weak);
    return block;
}

/* The block of a tape that takes the next call. */
static PyObject *open_block(PyObject *tape, PyObject *settings)
{
    PyObject *block = GET(tape, Tape_block);
    if (block == Py_None) {
        block = made_block(tape, settings);
        if (block != NULL || PyErr_Occurred())
            return block;
    }
    else if (GET(block, Block_closed) == Py_False) {
        Py_INCREF(block);
        int same = are_set(our.settings, GET(block, Block_state));
        if (same == 1)
            return block;
        Py_DECREF(block);
        if (same < 0)
            return NULL;
    }
    return PyObject_CallOneArg(our.new_block, tape);
}

/* Put a block on its tape: `Tape.log`, `AmbientTape.log`. */
static int put_on(PyObject *tape, PyObject *block)
{
    PyObject *entry = IS(tape, AmbientTape) ? PyWeakref_NewRef(block, NULL) : IS(tape, Tape) ? Py_NewRef(block) : NULL;
    int done = PyErr_Occurred() ? -1 : 0;
    PyObject *log = GET(tape, Tape_logged);
    if (entry != NULL && (IS(tape, Tape) || PyList_GET_SIZE(log) == 0)) {
        done = PyList_Append(log, entry);
        if (done == 0)
            PUT(block, Block_logged, Py_NewRef(Py_True));
    }
    else if (done == 0) {
        PyObject *said = PyObject_CallMethodOneArg(tape, word.log, block);
        done = said == NULL ? -1 : 0;
        Py_XDECREF(said);
    }
    Py_XDECREF(entry);
    return done;
}

/* Defer a call; its result. NULL without an error, and nothing has happened, if it is to go Python's way. */
static PyObject *defer(PyObject *plan, PyObject *const *tensors, Py_ssize_t n, PyObject *scope)
{
    if (GET(scope, Scope_special) != Py_False || GET(plan, Plan_special) != Py_False ||
        GET(plan, Plan_bare) != Py_True || GET(plan, Plan_drops) != Py_False ||
        GET(our.fusion, Fusion_everywhere) != Py_True || n > MOST)
        return NULL;
    PyObject *tape = GET(scope, Scope_tape), *block = open_block(tape, GET(plan, Plan_settings));
    PyObject *key = NULL, *where = NULL, *others = NULL, *number = NULL, *made = NULL, *reference = NULL, *call = NULL;
    int records = GET(plan, Plan_records) == Py_True, done = 0;
    if (block == NULL || GET(plan, Plan_settings) != GET(block, Block_settings))
        goto end;
    key = PyTuple_New(n + 1);
    if (key == NULL)
        goto end;
    PyTuple_SET_ITEM(key, 0, Py_NewRef(plan));
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *pending = GET(tensors[i], Tensor_held) == block ? GET(tensors[i], Tensor_slot) : NULL;
        PyObject *slot = pending != NULL ? Py_NewRef(pending) : bring(block, tensors[i]);
        if (slot == NULL)
            goto end;
        PyTuple_SET_ITEM(key, i + 1, slot);
    }
    where = records ? where_here() : Py_NewRef(Py_None);
    others = where != NULL && records ? numbers_of_others(plan, tensors, n) : Py_NewRef(Py_None);
    number = others == NULL ? NULL : next_number();
    made = number == NULL ? NULL : NEW(Tensor);
    if (made == NULL || where == NULL)
        goto end;
    GET(made, Tensor_held) = Py_NewRef(block);
    GET(made, Tensor_identity) = Py_NewRef(number);
    GET(made, Tensor_kind) = Py_NewRef(PyTuple_GET_ITEM(GET(plan, Plan_out_kinds), 0));
    reference = PyWeakref_NewRef(made, NULL);
    call = reference == NULL ? NULL : PyTuple_Pack(5, key, number, reference, where, others);
    if (call == NULL || GET(block, Block_closed) != Py_False) /* a finalizer ran it: Python starts another */
        goto end;
    PyObject *calls = GET(block, Block_calls);
    Py_ssize_t index = PyList_GET_SIZE(calls);
    GET(made, Tensor_slot) = PyLong_FromSsize_t(index); /* a small number: nothing is allocated */
    if (PyList_Append(calls, call) < 0)
        goto end;
    done = 1;
    if (index >= PyLong_AsSsize_t(GET(block, Block_last)))
        PUT(block, Block_closed, Py_NewRef(Py_True));
    if (records && GET(block, Block_logged) == Py_False)
        done = put_on(tape, block) == 0;
end:
    Py_XDECREF(block);
    Py_XDECREF(key);
    Py_XDECREF(where);
    Py_XDECREF(others);
    Py_XDECREF(number);
    Py_XDECREF(reference);
    Py_XDECREF(call);
    if (!done)
        Py_CLEAR(made);
    return made;
}

static PyObject *as_tuple(PyObject *const *objects, Py_ssize_t n)
{
    PyObject *made = PyTuple_New(n);
    for (Py_ssize_t i = 0; made != NULL && i < n; i++)
        PyTuple_SET_ITEM(made, i, Py_NewRef(objects[i]));
    return made;
}

/* Apply a plan: here if that can be, otherwise by Python's `apply_plan`. */
static PyObject *apply(PyObject *plan, PyObject *const *tensors, Py_ssize_t n, PyObject *scope)
{
    PyObject *made = defer(plan, tensors, n, scope);
    if (made != NULL || PyErr_Occurred())
        return made;
    PyObject *given = as_tuple(tensors, n);
    made = given == NULL ? NULL : PyObject_CallFunctionObjArgs(our.apply_plan, plan, given, scope, NULL);
    Py_XDECREF(given);
    return made;
}

/* --- keys: tensor_key and plain_key in lift.py ------------------------------------------------------------------- */

static PyObject *tensor_key(PyObject *const *tensors, Py_ssize_t n, PyObject *scope, PyObject *x64)
{
    PyObject *key = PyTuple_New(n + 2);
    if (key == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < n; i++)
        PyTuple_SET_ITEM(key, i, Py_NewRef(GET(tensors[i], Tensor_kind)));
    PyTuple_SET_ITEM(key, n, Py_NewRef(GET(scope, Scope_enabled)));
    PyTuple_SET_ITEM(key, n + 1, Py_NewRef(x64));
    return key;
}

static int are_integers(PyObject *tuple)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++)
        if (!PyLong_CheckExact(PyTuple_GET_ITEM(tuple, i)))
            return 0;
    return 1;
}

/* Add an option to a key, with its name if it has one; whether that can be. */
static int add_option(PyObject *key, PyObject *name, PyObject *option)
{
    PyObject *type = (PyObject *)Py_TYPE(option);
    int plain = PySet_Contains(our.PLAIN_OPTIONS, type);
    if (plain < 0 || (!plain && !(PyTuple_CheckExact(option) && are_integers(option))))
        return 0;
    return (name == NULL || PyList_Append(key, name) == 0) && (!plain || PyList_Append(key, type) == 0) &&
           PyList_Append(key, option) == 0;
}

/* NULL without an error: there is more to the call. The Tensors among the arguments are put into `tensors`. */
static PyObject *plain_key(PyObject *const *args, Py_ssize_t n, PyObject *names, PyObject *scope, PyObject *x64,
                           PyObject **tensors, Py_ssize_t *count)
{
    PyObject *size = PyLong_FromSsize_t(n), *key = PyList_New(0), *found = NULL;
    Py_ssize_t n_names = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    int fits = size != NULL && key != NULL && PyList_Append(key, size) == 0;
    *count = 0;
    for (Py_ssize_t i = 0; fits && i < n; i++) {
        if (!is_tensor(args[i]))
            fits = add_option(key, NULL, args[i]);
        else if ((fits = *count < MOST && PyList_Append(key, GET(args[i], Tensor_kind)) == 0))
            tensors[(*count)++] = args[i];
    }
    for (Py_ssize_t i = 0; fits && i < n_names; i++)
        fits = add_option(key, PyTuple_GET_ITEM(names, i), args[n + i]);
    if (fits && PyList_Append(key, GET(scope, Scope_enabled)) == 0 && PyList_Append(key, x64) == 0)
        found = PyList_AsTuple(key);
    Py_XDECREF(size);
    Py_XDECREF(key);
    return found;
}

/* --- Call: what is called with Tensors and options. Lifted is one -------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *plans; /* a dict: plans by key */
} Call;

static PyObject *call_generally(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names, PyObject *scope,
                                PyObject *key)
{
    PyObject *given = as_tuple(args, n), *options = PyDict_New(), *result = NULL;
    Py_ssize_t n_names = names == NULL ? 0 : PyTuple_GET_SIZE(names), i = 0;
    while (options != NULL && i < n_names && PyDict_SetItem(options, PyTuple_GET_ITEM(names, i), args[n + i]) == 0)
        i++;
    if (given != NULL && options != NULL && i == n_names)
        result = PyObject_CallMethodObjArgs(self, word.general, given, options, scope, key, NULL);
    Py_XDECREF(given);
    Py_XDECREF(options);
    return result;
}

static PyObject *called(PyObject *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Py_ssize_t n = PyVectorcall_NARGS(flags), count = n;
    PyObject *some[MOST], *const *tensors = args;
    PyObject *plans = ((Call *)self)->plans, *key = NULL, *plan = NULL, *result = NULL;
    PyObject *scope = scope_here(), *x64 = scope == NULL ? NULL : setting(0);
    if (x64 == NULL)
        goto end;
    if (plans == NULL || !PyDict_Check(plans)) {
        PyErr_SetString(PyExc_AttributeError, "a call has `plans`, a dict");
        goto end;
    }
    int only_tensors = (names == NULL || PyTuple_GET_SIZE(names) == 0) && are_tensors(args, n);
    if (only_tensors)
        key = tensor_key(args, n, scope, x64);
    else {
        key = plain_key(args, n, names, scope, x64, some, &count);
        tensors = some;
    }
    if (key != NULL)
        plan = Py_XNewRef(PyDict_GetItemWithError(plans, key));
    if (PyErr_Occurred())
        goto end;
    if (plan != NULL)
        result = apply(plan, tensors, count, scope);
    else
        result = call_generally(self, args, n, names, scope, only_tensors || key == NULL ? Py_None : key);
end:
    Py_XDECREF(plan);
    Py_XDECREF(key);
    Py_XDECREF(x64);
    Py_XDECREF(scope);
    return result;
}

static PyObject *call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Call *self = (Call *)type->tp_alloc(type, 0);
    if (self != NULL)
        self->vectorcall = called;
    return (PyObject *)self;
}

static int call_traverse(Call *self, visitproc visit, void *arg)
{
    Py_VISIT(self->plans);
    return 0;
}

static int call_clear(Call *self)
{
    Py_CLEAR(self->plans);
    return 0;
}

static void call_dealloc(Call *self)
{
    PyObject_GC_UnTrack(self);
    call_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef call_members[] = {
    {"plans", T_OBJECT_EX, offsetof(Call, plans), 0, "plans by key"},
    {NULL},
};

PyTypeObject CallType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tapejax.native.Call",
    .tp_doc = "What is called with Tensors and options: finds the plan, and applies it. See PlainCall in ops/lift.py.",
    .tp_basicsize = sizeof(Call),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = call_new,
    .tp_traverse = (traverseproc)call_traverse,
    .tp_clear = (inquiry)call_clear,
    .tp_dealloc = (destructor)call_dealloc,
    .tp_members = call_members,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Call, vectorcall),
};

/* --- Method: of Tensor, which comes to a call with it as an operand ------------------------------------------------ */

#define ANY (-1)

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *call;     /* a Call: what it comes to */
    PyObject *function; /* the same in Python, whatever it is given */
    PyObject *dict;     /* its name, its docstring */
    PyObject *weak;     /* references to it */
    int others;         /* how many arguments it has besides the Tensor: none, one (an operand), or ANY */
    int reflected;      /* whether it is called with its operands in the other order */
} Method;

/* The Tensor that stands for an operand: itself, or a number's; NULL: Python knows. */
static PyObject *operand(PyObject *other)
{
    if (is_tensor(other))
        return Py_NewRef(other);
    if (!(PyFloat_CheckExact(other) || PyLong_CheckExact(other)) || PyObject_IsTrue(other) != 1)
        return NULL; /* 0.0 and -0.0 are equal: see `scalar` in lift.py */
    PyObject *promotion = setting(3), *x64 = setting(0), *key = NULL, *found = NULL;
    int literal = promotion == NULL || !PyUnicode_Check(promotion) || PyUnicode_CompareWithASCIIString(promotion, "strict") == 0;
    if (!literal && x64 != NULL && (key = PyTuple_Pack(3, (PyObject *)Py_TYPE(other), other, x64)) != NULL)
        found = Py_XNewRef(PyDict_GetItemWithError(our.scalars, key));
    Py_XDECREF(promotion);
    Py_XDECREF(x64);
    Py_XDECREF(key);
    return found;
}

static PyObject *method_called(PyObject *self, PyObject *const *args, size_t flags, PyObject *names)
{
    Method *method = (Method *)self;
    Py_ssize_t n = PyVectorcall_NARGS(flags);
    int quick = n > 0 && is_tensor(args[0]);
    if (quick && (method->others == ANY || (method->others == 0 && n == 1 && names == NULL)))
        return called(method->call, args, flags, names);
    if (quick && method->others == 1 && n == 2 && names == NULL) {
        PyObject *other = operand(args[1]);
        if (other != NULL) {
            PyObject *both[] = {method->reflected ? other : args[0], method->reflected ? args[0] : other};
            PyObject *result = called(method->call, both, 2, NULL);
            Py_DECREF(other);
            return result;
        }
        if (PyErr_Occurred())
            return NULL;
    }
    return PyObject_Vectorcall(method->function, args, flags, names);
}

static PyObject *method_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *call, *function;
    int others, reflected;
    if (!PyArg_ParseTuple(args, "O!Oip", &CallType, &call, &function, &others, &reflected))
        return NULL;
    Method *self = (Method *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = method_called;
        self->call = Py_NewRef(call);
        self->function = Py_NewRef(function);
        self->others = others;
        self->reflected = reflected;
    }
    return (PyObject *)self;
}

static PyObject *method_get(PyObject *self, PyObject *object, PyObject *type)
{
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

static PyObject *method_repr(PyObject *self) { return PyObject_Repr(((Method *)self)->function); }

/* A copy, and what is loaded, is the one that has its name. */
static PyObject *method_reduce(PyObject *self, PyObject *nothing)
{
    return PyObject_GetAttrString(((Method *)self)->function, "__qualname__");
}

static int method_traverse(Method *self, visitproc visit, void *arg)
{
    Py_VISIT(self->call);
    Py_VISIT(self->function);
    Py_VISIT(self->dict);
    return 0;
}

static int method_clear(Method *self)
{
    Py_CLEAR(self->call);
    Py_CLEAR(self->function);
    Py_CLEAR(self->dict);
    return 0;
}

static void method_dealloc(Method *self)
{
    PyObject_GC_UnTrack(self);
    PyObject_ClearWeakRefs((PyObject *)self);
    method_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyGetSetDef method_attributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL},
};

static PyMethodDef method_methods[] = {
    {"__reduce__", method_reduce, METH_NOARGS, NULL},
    {NULL},
};

PyTypeObject MethodType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tapejax.native.Method",
    .tp_basicsize = sizeof(Method),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = method_new,
    .tp_traverse = (traverseproc)method_traverse,
    .tp_clear = (inquiry)method_clear,
    .tp_dealloc = (destructor)method_dealloc,
    .tp_getset = method_attributes,
    .tp_methods = method_methods,
    .tp_repr = method_repr,
    .tp_getattro = PyObject_GenericGetAttr,
    .tp_setattro = PyObject_GenericSetAttr,
    .tp_dictoffset = offsetof(Method, dict),
    .tp_weaklistoffset = offsetof(Method, weak),
    .tp_descr_get = method_get,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Method, vectorcall),
};
