/* What the files of this folder share: the objects that Python hands over, and how their slots are read. */

#ifndef TAPEJAX_SHARED_H
#define TAPEJAX_SHARED_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

/* Objects by the names that they are handed over with. */
#define OBJECTS(each)                                                                                                  \
    each(Tensor) each(Kind) each(TensorId) each(Scope) each(Fusion) each(Tape) each(AmbientTape) each(Epoch) /* classes */\
    each(Block) each(Sealed) each(Outcome) each(Plan) each(Executable) each(Gradients) each(Later) each(RLock)         \
    each(apply_plan) each(current_scope) each(new_block) each(running_loop) each(top_trace) each(next_use) /* functions */\
    each(several_devices) each(looks_for_nonfinite)                                                                    \
    each(UNHELD_LATER)                      /* what is asked of a block if everything is wanted: see short.py */       \
    each(block_module)                      /* where the most calls of a block are said */                             \
    each(cuts) each(alarm) each(hooks)      /* whoever looks at a backward: see engine/backward.py */                  \
    each(scope_variable) each(this_thread)  /* where scopes are, and tokens of threads */                              \
    each(INTERNAL)                          /* by file: whether it is not the user's */                                \
    each(CONCRETE)                          /* types of values that are no tracers */                                  \
    each(PLAIN_OPTIONS)                     /* types of options that can be in a key as they are */                    \
    each(scalars)                           /* Tensors of Python numbers */                                            \
    each(layouts)                           /* by key of a block */                                                    \
    each(numbers)                           /* an iterator: the numbers of identities */                               \
    each(fusion)                            /* the switch */                                                           \
    each(no_trace)                          /* what `top_trace` gives outside of any */                                \
    each(settings)                          /* of jax: those in Block.state, in its order; the first is x64 */         \
    each(all_settings)                      /* those in Settings.values, in its order */                               \
    each(PENDING) each(CONSUMED)            /* states of a block */

/* Slots of their classes. */
#define SLOTS(each)                                                                                                    \
    each(Tensor, held) each(Tensor, slot) each(Tensor, identity) each(Tensor, kind) each(Kind, requires_grad)          \
    each(TensorId, number) each(TensorId, made_by)                                                                     \
    each(Scope, tape) each(Scope, enabled) each(Scope, special) each(Scope, thread) each(Scope, task)                  \
    each(Fusion, everywhere)                                                                                           \
    each(Tape, block) each(Tape, epoch) each(Tape, label) each(Tape, logged)                                           \
    each(Epoch, ambient) each(Epoch, first) each(Epoch, hooks) each(Epoch, label) each(Epoch, merged_into)             \
    each(Epoch, start) each(Epoch, taken_by) each(Epoch, thread)                                                       \
    each(Block, brought) each(Block, calls) each(Block, closed) each(Block, devices) each(Block, epoch) each(Block, home)\
    each(Block, last) each(Block, lock) each(Block, logged) each(Block, outside) each(Block, sealed)                   \
    each(Block, settings) each(Block, several) each(Block, state) each(Block, weak)                                    \
    each(Sealed, actions) each(Sealed, layout) each(Sealed, named) each(Sealed, now) each(Sealed, number)              \
    each(Sealed, others) each(Sealed, where) each(Sealed, places) each(Sealed, leading)                                \
    each(Outcome, state) each(Outcome, owners) each(Outcome, order) each(Outcome, inputs) each(Outcome, made)          \
    each(Outcome, forward) each(Outcome, kept) each(Outcome, results) each(Outcome, places) each(Outcome, errors)      \
    each(Outcome, shardings) each(Outcome, held)                                                                       \
    each(Plan, all_wrt) each(Plan, bare) each(Plan, drops) each(Plan, out_kinds) each(Plan, records)                   \
    each(Plan, settings) each(Plan, special) each(Plan, wrt)                                                           \
    each(Executable, jitted) each(Executable, last_use)                                                                \
    each(Gradients, ready) each(Gradients, unasked) each(Gradients, index) each(Gradients, requested)                  \
    each(Later, backward) each(Later, results) each(Later, there) each(Later, origin) each(Later, settings)            \
    each(Later, device) each(Later, computed)

/* Names of attributes and methods. */
#define WORDS(each)                                                                                                    \
    each(acquire) each(backward) each(bring) each(consume) each(is_plain) each(last) each(left_out) each(log)          \
    each(n_inputs) each(order) each(origin) each(outputs) each(places) each(program) each(reason) each(release)        \
    each(roots) each(steps) each(together) each(token) each(value) each(values) each(weak) each(wrt) each(LIMIT)

#define DECLARE_OBJECT(name) PyObject *name;
#define DECLARE_SLOT(owner, name) Py_ssize_t owner##_##name;
extern struct handed_over { OBJECTS(DECLARE_OBJECT) } our;
extern struct offsets { SLOTS(DECLARE_SLOT) } at;
extern struct words { WORDS(DECLARE_OBJECT) PyObject *general, *taken_by_backward; } word;

/* A slot's value, to which no reference is taken; NULL if it never had one. */
#define GET(object, slot) (*(PyObject **)((char *)(object) + at.slot))
/* Give a slot a value; takes over the reference. */
#define PUT(object, slot, value)                                                                                       \
    do {                                                                                                               \
        PyObject *before_ = GET(object, slot), *value_ = (value);                                                      \
        GET(object, slot) = value_;                                                                                    \
        Py_XDECREF(before_);                                                                                           \
    } while (0)
#define IS(object, class) Py_IS_TYPE(object, (PyTypeObject *)our.class)
#define NEW(class) (((PyTypeObject *)our.class)->tp_alloc((PyTypeObject *)our.class, 0))

static inline PyObject *next_number(void) { return Py_TYPE(our.numbers)->tp_iternext(our.numbers); }

/* The number of a Tensor's identity; no reference is taken. */
static inline PyObject *number_of(PyObject *tensor)
{
    PyObject *id = GET(tensor, Tensor_identity);
    return PyLong_CheckExact(id) ? id : GET(id, TensorId_number);
}

/* Whether it is a Tensor, and no half-made one. */
static inline int is_tensor(PyObject *object)
{
    return IS(object, Tensor) && GET(object, Tensor_held) != NULL && GET(object, Tensor_slot) != NULL &&
           GET(object, Tensor_identity) != NULL && GET(object, Tensor_kind) != NULL;
}

static inline int are_tensors(PyObject *const *objects, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++)
        if (!is_tensor(objects[i]))
            return 0;
    return 1;
}

PyObject *setting(Py_ssize_t place);      /* the value of one of our.settings */
int are_set(PyObject *states, PyObject *values); /* whether settings of jax have these values now; -1: an error */
PyObject *scope_here(void);               /* current_scope in tape/scope.py */
PyObject *where_here(void);               /* user_frame in ground/where.py */

PyObject *back(PyObject *module, PyObject *const *args, Py_ssize_t n);
extern PyTypeObject CallType, MethodType;

#endif
