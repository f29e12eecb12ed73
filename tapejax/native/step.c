/* The short way of a training step, where nothing was looked at before: `step` in fusion/short.py, `Block.seal`,
`Sealed.consume`, `Tape.restart`; and the head of `backward` in engine/backward.py. */

#include "shared.h"

/* Whether the tape holds this block and nothing else. */
static int is_just(PyObject *tape, PyObject *block)
{
    PyObject *log = GET(tape, Tape_logged);
    if (PyList_GET_SIZE(log) != 1)
        return 0;
    PyObject *entry = PyList_GET_ITEM(log, 0);
    if (!PyWeakref_CheckRefExact(entry))
        return entry == block;
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *found = NULL;
    PyWeakref_GetRef(entry, &found);
    Py_XDECREF(found); /* somebody else holds the block */
    return found == block;
#else
    return PyWeakref_GET_OBJECT(entry) == block;
#endif
}

/* Whether jax's settings are as they were when the calls were made, and there is no trace around; -1: an error. */
static int is_as_it_was(PyObject *block)
{
    PyObject *then = PyObject_GetAttr(GET(block, Block_settings), word.values);
    int same = then == NULL ? -1 : are_set(our.all_settings, then);
    Py_XDECREF(then);
    if (same != 1)
        return same;
    PyObject *device = setting(1), *nothing = PyTuple_New(0);
    PyObject *trace = device == NULL || nothing == NULL ? NULL : PyObject_CallOneArg(our.top_trace, nothing);
    same = trace == NULL ? -1 : trace == our.no_trace && device == PyTuple_GET_ITEM(GET(block, Block_state), 1);
    Py_XDECREF(device);
    Py_XDECREF(nothing);
    Py_XDECREF(trace);
    return same;
}

static PyObject *new_outcome(PyObject *state, PyObject *owners, PyObject *order)
{
    PyObject *made = NEW(Outcome), *nothing = PyTuple_New(0), *places = PyDict_New(), *errors = PyDict_New();
    if (made == NULL || nothing == NULL || places == NULL || errors == NULL) {
        Py_CLEAR(made);
        goto end;
    }
    GET(made, Outcome_state) = Py_NewRef(state);
    GET(made, Outcome_owners) = Py_NewRef(owners);
    GET(made, Outcome_order) = Py_NewRef(order);
    GET(made, Outcome_inputs) = Py_NewRef(nothing);
    GET(made, Outcome_made) = Py_NewRef(nothing);
    GET(made, Outcome_results) = Py_NewRef(nothing);
    GET(made, Outcome_places) = Py_NewRef(places);
    GET(made, Outcome_errors) = Py_NewRef(errors);
    GET(made, Outcome_forward) = Py_NewRef(Py_None);
    GET(made, Outcome_kept) = Py_NewRef(Py_None);
    GET(made, Outcome_shardings) = Py_NewRef(Py_None);
    GET(made, Outcome_held) = Py_NewRef(nothing);
end:
    Py_XDECREF(nothing);
    Py_XDECREF(places);
    Py_XDECREF(errors);
    return made;
}

/* One part of each call, as a tuple. */
static PyObject *column(PyObject *calls, Py_ssize_t part)
{
    Py_ssize_t n = PyList_GET_SIZE(calls);
    PyObject *made = PyTuple_New(n);
    for (Py_ssize_t i = 0; made != NULL && i < n; i++)
        PyTuple_SET_ITEM(made, i, Py_NewRef(PyTuple_GET_ITEM(PyList_GET_ITEM(calls, i), part)));
    return made;
}

static PyObject *identities(PyObject *tensors)
{
    Py_ssize_t n = PyList_GET_SIZE(tensors);
    PyObject *made = PyList_New(n);
    for (Py_ssize_t i = 0; made != NULL && i < n; i++)
        PyList_SET_ITEM(made, i, Py_NewRef(GET(PyList_GET_ITEM(tensors, i), Tensor_identity)));
    return made;
}

static Py_ssize_t size_of(PyObject *object, PyObject *name) /* an attribute that is a number; -1: an error */
{
    PyObject *found = PyObject_GetAttr(object, name);
    Py_ssize_t size = found == NULL ? -1 : PyLong_AsSsize_t(found);
    Py_XDECREF(found);
    return size;
}

/* Seal a block whose structure is known, and whose calls make one result each; what it is then. NULL without an error: Python does. */
static PyObject *sealed_of(PyObject *block)
{
    PUT(block, Block_closed, Py_NewRef(Py_True)); /* before the calls are read: who defers one later sees it */
    PyObject *calls = Py_NewRef(GET(block, Block_calls)), *brought = Py_NewRef(GET(block, Block_brought));
    PyObject *keys = column(calls, 0), *layout = NULL, *plain = NULL, *order = NULL, *inputs = NULL, *owners = NULL;
    PyObject *sealed = NULL, *now = NULL, *fresh[3] = {NULL, NULL, NULL};
    layout = keys == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(our.layouts, keys));
    plain = layout == NULL ? NULL : PyObject_GetAttr(layout, word.is_plain);
    if (plain != Py_True)
        goto end;
    Py_ssize_t n_inputs = size_of(layout, word.n_inputs);
    if (n_inputs < 0 || (order = PyObject_GetAttr(layout, word.order)) == NULL ||
        (inputs = PyList_GetSlice(brought, 0, n_inputs)) == NULL || (owners = identities(inputs)) == NULL ||
        (now = new_outcome(our.PENDING, owners, order)) == NULL || (sealed = NEW(Sealed)) == NULL)
        goto end;
    PUT(now, Outcome_inputs, Py_NewRef(inputs));
    GET(sealed, Sealed_layout) = Py_NewRef(layout);
    GET(sealed, Sealed_now) = Py_NewRef(now);
    GET(sealed, Sealed_actions) = Py_NewRef(Py_None);
    GET(sealed, Sealed_places) = Py_NewRef(Py_None);
    GET(sealed, Sealed_leading) = Py_NewRef(Py_None);
    GET(sealed, Sealed_number) = column(calls, 1);
    GET(sealed, Sealed_where) = column(calls, 3);
    GET(sealed, Sealed_others) = column(calls, 4);
    GET(sealed, Sealed_named) = PyList_New(0);
    PUT(now, Outcome_made, column(calls, 2));
    fresh[0] = PyList_New(0), fresh[1] = PyList_New(0), fresh[2] = PyDict_New();
    if (PyErr_Occurred() || GET(block, Block_sealed) != Py_None) /* the last: by a finalizer, meanwhile */
        Py_CLEAR(sealed);
    else {
        PUT(block, Block_sealed, Py_NewRef(sealed));
        PUT(block, Block_calls, Py_NewRef(fresh[0]));
        PUT(block, Block_brought, Py_NewRef(fresh[1]));
        PUT(block, Block_outside, Py_NewRef(fresh[2]));
    }
end:
    Py_DECREF(calls);
    Py_DECREF(brought);
    Py_XDECREF(keys);
    Py_XDECREF(layout);
    Py_XDECREF(plain);
    Py_XDECREF(order);
    Py_XDECREF(inputs);
    Py_XDECREF(owners);
    Py_XDECREF(now);
    for (int i = 0; i < 3; i++)
        Py_XDECREF(fresh[i]);
    return sealed;
}

/* Which results somebody holds: by slot. */
static PyObject *held_of(PyObject *references)
{
    PyObject *held = PyDict_New();
    for (Py_ssize_t i = 0; held != NULL && i < PyTuple_GET_SIZE(references); i++) {
        PyObject *tensor;
#if PY_VERSION_HEX >= 0x030D0000
        PyWeakref_GetRef(PyTuple_GET_ITEM(references, i), &tensor);
#else
        tensor = PyWeakref_GET_OBJECT(PyTuple_GET_ITEM(references, i));
        tensor = tensor == Py_None ? NULL : Py_NewRef(tensor);
#endif
        if (tensor != NULL) {
            PyObject *slot = PyLong_FromSsize_t(i);
            if (slot == NULL || PyDict_SetItem(held, slot, tensor) < 0)
                Py_CLEAR(held);
            Py_XDECREF(slot);
            Py_DECREF(tensor);
        }
    }
    return held;
}

/* The slots of identities that are read in a block. NULL without an error: one of them is not. */
static PyObject *slots_of(PyObject *numbers, PyObject *block)
{
    Py_ssize_t n = PyList_GET_SIZE(numbers);
    PyObject *slots = PyTuple_New(n), *outside = GET(block, Block_outside); /* it is read after the last allocation */
    for (Py_ssize_t i = 0; slots != NULL && i < n; i++) {
        PyObject *slot = PyDict_GetItemWithError(outside, PyList_GET_ITEM(numbers, i));
        if (slot == NULL)
            Py_CLEAR(slots);
        else
            PyTuple_SET_ITEM(slots, i, Py_NewRef(slot));
    }
    return slots;
}

/* The numbers of Tensors' identities. NULL without an error: a finalizer has put something else there. */
static PyObject *numbers_of(PyObject *wrt)
{
    Py_ssize_t n = PySequence_Fast_GET_SIZE(wrt);
    PyObject *numbers = PyList_New(n), *const *tensors = PySequence_Fast_ITEMS(wrt); /* after the last allocation */
    if (numbers != NULL && (PySequence_Fast_GET_SIZE(wrt) != n || !are_tensors(tensors, n)))
        Py_CLEAR(numbers);
    for (Py_ssize_t i = 0; numbers != NULL && i < n; i++)
        PyList_SET_ITEM(numbers, i, Py_NewRef(number_of(tensors[i])));
    return numbers;
}

/* What `_known` in short.py has found before: (program, places). NULL without an error: nothing, or it is not compiled. */
static PyObject *known(PyObject *layout, PyObject *start, PyObject *slots, PyObject *held)
{
    PyObject *steps = PyObject_GetAttr(layout, word.steps), *there = PySequence_Tuple(held), *key = NULL, *found = NULL;
    if (steps != NULL && there != NULL && (key = PyTuple_Pack(3, start, slots, there)) != NULL)
        found = Py_XNewRef(PyDict_GetItemWithError(steps, key));
    if (found != NULL) {
        PyObject *together = PyObject_GetAttr(PyTuple_GET_ITEM(found, 0), word.together);
        PyObject *reason = together == NULL ? NULL : PyObject_GetAttr(together, word.reason);
        if (reason == NULL || reason == Py_None)
            Py_CLEAR(found);
        Py_XDECREF(reason);
        Py_XDECREF(together);
    }
    Py_XDECREF(steps);
    Py_XDECREF(there);
    Py_XDECREF(key);
    return found;
}

static PyObject *values_of(PyObject *tensors)
{
    Py_ssize_t n = PyList_GET_SIZE(tensors);
    PyObject *values = PyList_New(n);
    for (Py_ssize_t i = 0; values != NULL && i < n; i++)
        PyList_SET_ITEM(values, i, Py_NewRef(GET(PyList_GET_ITEM(tensors, i), Tensor_held)));
    return values;
}

/* Run a program: (results, gradients). NULL without an error: Python is to try, and to name what fails. */
static PyObject *run(PyObject *both, PyObject *values)
{
    PyObject *executable = PyObject_GetAttr(both, word.program), *jitted = NULL, *none = NULL, *found = NULL;
    if (executable == NULL || !IS(executable, Executable) || GET(executable, Executable_jitted) == Py_None)
        goto end;
    jitted = Py_NewRef(GET(executable, Executable_jitted));
    PyObject *use = PyObject_CallNoArgs(our.next_use);
    if (use == NULL)
        goto end;
    PUT(executable, Executable_last_use, use);
    none = PyList_New(0);
    if (none != NULL)
        found = PyObject_CallFunctionObjArgs(jitted, values, none, NULL);
    if (found == NULL && PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_Clear();
    if (found != NULL && !(PyTuple_CheckExact(found) && PyTuple_GET_SIZE(found) == 2 &&
                           PyList_CheckExact(PyTuple_GET_ITEM(found, 0)) && PyList_CheckExact(PyTuple_GET_ITEM(found, 1))))
        Py_CLEAR(found);
end:
    Py_XDECREF(executable);
    Py_XDECREF(jitted);
    Py_XDECREF(none);
    return found;
}

/* --- what is handed to the caller: `_filed` in short.py ------------------------------------------------------------ */

/* The gradients that were left out: `Later`, as `_filed` makes it. */
static PyObject *later(PyObject *block, PyObject *sealed, PyObject *backward, PyObject *there, PyObject *values)
{
    PyObject *left = NEW(Later), *nothing = PyTuple_New(0), *origin = NULL;
    if (nothing != NULL)
        origin = PyObject_CallMethodObjArgs(backward, word.origin, values, nothing, NULL);
    if (left != NULL && origin != NULL) {
        GET(left, Later_backward) = Py_NewRef(backward);
        GET(left, Later_results) = Py_NewRef(GET(sealed, Sealed_number));
        GET(left, Later_there) = Py_NewRef(there);
        GET(left, Later_origin) = Py_NewRef(origin);
        GET(left, Later_settings) = Py_NewRef(GET(block, Block_settings));
        GET(left, Later_device) = Py_NewRef(PyTuple_GET_ITEM(GET(block, Block_state), 1));
        GET(left, Later_computed) = Py_NewRef(Py_None);
    }
    else
        Py_CLEAR(left);
    Py_XDECREF(nothing);
    Py_XDECREF(origin);
    return left;
}

static int file_all(PyObject *ready, PyObject *unasked, PyObject *block, PyObject *sealed, PyObject *start, PyObject *backward,
                    PyObject *gradients, PyObject *values)
{
    PyObject *owners = GET(GET(sealed, Sealed_now), Outcome_owners), *numbers = GET(sealed, Sealed_number);
    PyObject *outputs = PyObject_GetAttr(backward, word.outputs), *left_out = PyObject_GetAttr(backward, word.left_out);
    PyObject *there = PyList_New(0);
    int done = outputs == NULL || left_out == NULL || there == NULL ? -1 : 0;
    if (done == 0)
        done = PyDict_SetItem(ready, start, Py_None); /* the first, as it is where the loop adds up */
    for (Py_ssize_t i = 0; done == 0 && i < PyTuple_GET_SIZE(outputs); i++) {
        Py_ssize_t slot = PyLong_AsSsize_t(PyTuple_GET_ITEM(outputs, i));
        PyObject *id = slot < 0 ? PyList_GET_ITEM(owners, ~slot) : PyTuple_GET_ITEM(numbers, slot);
        PyObject *number = PyLong_CheckExact(id) ? id : GET(id, TensorId_number);
        done = PyDict_SetItem(ready, number, PyList_GET_ITEM(gradients, i)) || PyList_Append(there, number) ? -1 : 0;
    }
    if (done == 0 && PyTuple_GET_SIZE(left_out) > 0) {
        PyObject *left = later(block, sealed, backward, there, values);
        PyObject *one = left == NULL ? NULL : Py_BuildValue("(iO)", 1, left);
        done = one == NULL ? -1 : PyList_Append(unasked, one);
        Py_XDECREF(left);
        Py_XDECREF(one);
    }
    Py_XDECREF(outputs);
    Py_XDECREF(left_out);
    Py_XDECREF(there);
    return done;
}

static int file_some(PyObject *ready, PyObject *numbers, PyObject *places, PyObject *gradients)
{
    int done = 0;
    for (Py_ssize_t i = 0; done == 0 && i < PyList_GET_SIZE(numbers); i++) {
        PyObject *place = PyList_GET_ITEM(places, i);
        if (place != Py_None)
            done = PyDict_SetItem(ready, PyList_GET_ITEM(numbers, i), PyList_GET_ITEM(gradients, PyLong_AsSsize_t(place)));
    }
    return done;
}

/* values: of the block's inputs. */
static PyObject *filed(PyObject *block, PyObject *sealed, PyObject *start, PyObject *numbers, PyObject *both, PyObject *places,
                       PyObject *gradients, PyObject *values)
{
    PyObject *grads = NEW(Gradients), *ready = PyDict_New(), *unasked = PyList_New(0), *requested = PyDict_New();
    PyObject *roots = PyList_New(1), *backward = PyObject_GetAttr(both, word.backward);
    int done = -1;
    if (grads != NULL && ready != NULL && unasked != NULL && requested != NULL && roots != NULL && backward != NULL) {
        PyList_SET_ITEM(roots, 0, Py_NewRef(start));
        done = numbers == Py_None ? file_all(ready, unasked, block, sealed, start, backward, gradients, values)
                                  : file_some(ready, numbers, places, gradients);
        if (done == 0)
            done = PyDict_SetItem(requested, word.roots, roots) || PyDict_SetItem(requested, word.wrt, numbers);
        GET(grads, Gradients_ready) = Py_NewRef(ready);
        GET(grads, Gradients_unasked) = Py_NewRef(unasked);
        GET(grads, Gradients_index) = Py_NewRef(Py_None);
        GET(grads, Gradients_requested) = Py_NewRef(requested);
    }
    if (done != 0)
        Py_CLEAR(grads);
    Py_XDECREF(ready);
    Py_XDECREF(unasked);
    Py_XDECREF(requested);
    Py_XDECREF(roots);
    Py_XDECREF(backward);
    return grads;
}

/* --- what is left behind ------------------------------------------------------------------------------------------- */

/* `Tape.restart`. In one step: nothing is allocated while it changes. */
static int restart(PyObject *tape)
{
    PyObject *before = GET(tape, Tape_epoch), *where = where_here();
    PyObject *taken = where == NULL ? NULL : PyTuple_Pack(2, word.taken_by_backward, where), *log = PyList_New(0);
    PyObject *start = next_number(), *thread = PyLong_FromUnsignedLong(PyThread_get_thread_ident()), *epoch = NEW(Epoch);
    int done = taken != NULL && log != NULL && start != NULL && thread != NULL && epoch != NULL;
    if (done) {
        GET(epoch, Epoch_label) = Py_NewRef(GET(tape, Tape_label));
        GET(epoch, Epoch_ambient) = Py_NewRef(GET(before, Epoch_ambient));
        GET(epoch, Epoch_start) = Py_NewRef(start);
        GET(epoch, Epoch_first) = Py_NewRef(Py_False);
        GET(epoch, Epoch_merged_into) = Py_NewRef(Py_None);
        GET(epoch, Epoch_taken_by) = Py_NewRef(Py_None);
        GET(epoch, Epoch_hooks) = Py_NewRef(Py_None);
        GET(epoch, Epoch_thread) = Py_NewRef(thread);
        PUT(before, Epoch_taken_by, Py_NewRef(taken));
        PUT(tape, Tape_epoch, Py_NewRef(epoch));
        PUT(tape, Tape_logged, Py_NewRef(log));
        PUT(tape, Tape_block, Py_NewRef(Py_None));
    }
    Py_XDECREF(where);
    Py_XDECREF(taken);
    Py_XDECREF(log);
    Py_XDECREF(start);
    Py_XDECREF(thread);
    Py_XDECREF(epoch);
    return done ? 0 : -1;
}

/* Give a result its value, and an identity that knows whom to ask for its action: `Sealed.hand_to`. */
static int hand_to(PyObject *block, PyObject *sealed, PyObject *tensor, PyObject *value)
{
    PyObject *number = GET(tensor, Tensor_identity);
    if (GET(GET(tensor, Tensor_kind), Kind_requires_grad) == Py_True && PyLong_CheckExact(number)) {
        PyObject *id = NEW(TensorId);
        if (id == NULL)
            return -1;
        GET(id, TensorId_number) = Py_NewRef(number);
        GET(id, TensorId_made_by) = Py_NewRef(block);
        if (GET(block, Block_weak) == Py_True) {
            PyObject *reference = PyWeakref_NewRef(id, NULL);
            int done = reference == NULL ? -1 : PyList_Append(GET(sealed, Sealed_named), reference);
            Py_XDECREF(reference);
            if (done < 0) {
                Py_DECREF(id);
                return -1;
            }
        }
        PUT(tensor, Tensor_identity, id);
    }
    PUT(tensor, Tensor_held, Py_NewRef(value)); /* before its slot: whoever sees none must find the value */
    PUT(tensor, Tensor_slot, Py_NewRef(Py_None));
    return 0;
}

/* Its forward and its backward ran: hand out the values; nothing has to be kept: `Sealed.consume`. */
static int consume(PyObject *block, PyObject *sealed, PyObject *pending, PyObject *held, PyObject *both, PyObject *results)
{
    PyObject *places = PyObject_GetAttr(both, word.places);
    if (places == NULL)
        return -1;
    PyObject *used = new_outcome(our.CONSUMED, GET(pending, Outcome_owners), GET(pending, Outcome_order));
    if (GET(sealed, Sealed_now) != pending || GET(sealed, Sealed_actions) != Py_None) { /* somebody looked, meanwhile */
        PyObject *done = PyObject_CallMethodObjArgs(sealed, word.consume, block, held, places, results, NULL);
        Py_XDECREF(used);
        Py_DECREF(places);
        Py_XDECREF(done);
        return done == NULL ? -1 : 0;
    }
    int done = used == NULL ? -1 : 0;
    if (done == 0) {
        PyObject *empty = Py_NewRef(GET(used, Outcome_places)), *slot, *tensor;
        Py_ssize_t position = 0;
        PUT(used, Outcome_places, Py_NewRef(places));
        PUT(used, Outcome_results, Py_NewRef(results));
        PUT(sealed, Sealed_now, Py_NewRef(used));
        while (done == 0 && PyDict_Next(held, &position, &slot, &tensor)) {
            PyObject *place = PyDict_GetItemWithError(places, slot);
            done = place == NULL ? -1 : hand_to(block, sealed, tensor, PyList_GET_ITEM(results, PyLong_AsSsize_t(place)));
        }
        if (done == 0) { /* in this order: see Block.settle */
            PUT(used, Outcome_places, Py_NewRef(empty));
            PUT(used, Outcome_results, PyTuple_New(0));
        }
        Py_DECREF(empty);
        Py_DECREF(used);
    }
    Py_DECREF(places);
    return done;
}

/* --- the step ------------------------------------------------------------------------------------------------------ */

/* The gradients; NULL without an error, and nothing has happened but that the block may be sealed, if Python is to do it. */
static PyObject *there_and_back(PyObject *block, PyObject *root, PyObject *wrt, PyObject *tape)
{
    PyObject *numbers = Py_NewRef(Py_None), *slots = Py_NewRef(Py_None), *start = Py_NewRef(GET(root, Tensor_slot));
    PyObject *sealed = NULL, *pending = NULL, *held = NULL, *found = NULL, *inputs = NULL, *ran = NULL, *grads = NULL;
    if (GET(block, Block_sealed) != Py_None || start == Py_None || PyList_GET_SIZE(GET(block, Block_calls)) == 0)
        goto end;
    if (wrt != Py_None) {
        Py_SETREF(numbers, numbers_of(wrt));
        if (numbers == NULL)
            goto end;
        Py_SETREF(slots, slots_of(numbers, block));
        if (slots == NULL)
            goto end;
    }
    else {
        PyObject *looks = PyObject_CallNoArgs(our.looks_for_nonfinite);
        if (looks == NULL)
            goto end;
        if (looks == Py_False)
            Py_SETREF(slots, Py_NewRef(our.UNHELD_LATER));
        Py_DECREF(looks);
    }
    sealed = sealed_of(block);
    if (sealed == NULL)
        goto end;
    pending = Py_NewRef(GET(sealed, Sealed_now));
    held = held_of(GET(pending, Outcome_made));
    found = held == NULL ? NULL : known(GET(sealed, Sealed_layout), start, slots, held);
    if (found == NULL)
        goto end;
    PyObject *both = PyTuple_GET_ITEM(found, 0), *places = PyTuple_GET_ITEM(found, 1);
    inputs = values_of(GET(pending, Outcome_inputs));
    ran = inputs == NULL ? NULL : run(both, inputs);
    if (ran == NULL)
        goto end;
    PyObject *results = PyTuple_GET_ITEM(ran, 0), *gradients = PyTuple_GET_ITEM(ran, 1);
    grads = filed(block, sealed, number_of(root), numbers, both, places, gradients, inputs);
    /* The tape begins anew before the block is used up: an interrupt must not leave a tape that looks whole. */
    if (grads != NULL && (restart(tape) < 0 || consume(block, sealed, pending, held, both, results) < 0))
        Py_CLEAR(grads);
end:
    Py_XDECREF(numbers);
    Py_XDECREF(slots);
    Py_XDECREF(start);
    Py_XDECREF(sealed);
    Py_XDECREF(pending);
    Py_XDECREF(held);
    Py_XDECREF(found);
    Py_XDECREF(inputs);
    Py_XDECREF(ran);
    return grads;
}

static int can_be_done_here(PyObject *block, PyObject *root, PyObject *wrt, PyObject *tape) /* -1: an error */
{
    if (!IS(block, Block) || !is_tensor(root) || GET(root, Tensor_held) != block)
        return 0;
    if (wrt != Py_None && !((PyList_CheckExact(wrt) || PyTuple_CheckExact(wrt)) &&
                            are_tensors(PySequence_Fast_ITEMS(wrt), PySequence_Fast_GET_SIZE(wrt))))
        return 0;
    if (GET(block, Block_several) != Py_False || GET(our.fusion, Fusion_everywhere) != Py_True ||
        GET(GET(root, Tensor_kind), Kind_requires_grad) != Py_True || !is_just(tape, block))
        return 0;
    return is_as_it_was(block);
}

/* The short way, with the block locked. NULL without an error: Python is to do it. */
static PyObject *step(PyObject *root, PyObject *wrt, PyObject *tape)
{
    PyObject *block = GET(root, Tensor_held);
    int here = can_be_done_here(block, root, wrt, tape);
    if (here != 1)
        return NULL;
    PyObject *lock = Py_NewRef(GET(block, Block_lock)), *mine = PyObject_CallMethodNoArgs(lock, word.acquire), *grads = NULL;
    Py_INCREF(block);
    if (mine != NULL) {
        PyObject *type, *value, *traceback; /* an error stays what it was */
        grads = there_and_back(block, root, wrt, tape);
        PyErr_Fetch(&type, &value, &traceback);
        PyObject *done = PyObject_CallMethodNoArgs(lock, word.release);
        Py_XDECREF(done);
        PyErr_Restore(type, value, traceback);
    }
    Py_XDECREF(mine);
    Py_DECREF(lock);
    Py_DECREF(block);
    return grads;
}

/* --- backward(): its head, in engine/backward.py ------------------------------------------------------------------- */

/* Whether nobody looks at a backward from this tape: no Tensor was taken apart, no alarm, no hooks; -1: an error. */
static int is_unseen(PyObject *tape)
{
    PyObject *last = PyObject_GetAttr(our.cuts, word.last), *alarm = NULL;
    int cut = last == NULL ? -1 : PyObject_RichCompareBool(last, GET(GET(tape, Tape_epoch), Epoch_start), Py_GT);
    int hooked = cut < 0 ? -1 : PyObject_IsTrue(our.hooks);
    int found = hooked < 0 || PyContextVar_Get(our.alarm, NULL, &alarm) < 0 ? -1 : !cut && !hooked && alarm == Py_None;
    Py_XDECREF(last);
    Py_XDECREF(alarm);
    return found;
}

PyObject *back(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
    if (n != 3) {
        PyErr_SetString(PyExc_TypeError, "backward takes a root, what is wanted, and a tape");
        return NULL;
    }
    PyObject *root = args[0], *wrt = args[1], *tape = NULL, *wanted = NULL, *grads = NULL;
    if (!is_tensor(root) || !IS(GET(root, Tensor_held), Block))
        Py_RETURN_NOTIMPLEMENTED;
    if (args[2] == Py_None) {
        PyObject *scope = scope_here();
        tape = scope == NULL ? NULL : Py_NewRef(GET(scope, Scope_tape));
        Py_XDECREF(scope);
    }
    else if (PyObject_TypeCheck(args[2], (PyTypeObject *)our.Tape) && GET(args[2], Tape_logged) != NULL &&
             GET(args[2], Tape_epoch) != NULL) /* no half-made one */
        tape = Py_NewRef(args[2]);
    if (tape != NULL && is_unseen(tape) == 1) {
        wanted = is_tensor(wrt) ? PyTuple_Pack(1, wrt) : Py_NewRef(wrt);
        grads = wanted == NULL ? NULL : step(root, wanted, tape);
    }
    Py_XDECREF(tape);
    Py_XDECREF(wanted);
    if (grads == NULL && !PyErr_Occurred())
        Py_RETURN_NOTIMPLEMENTED;
    return grads;
}
