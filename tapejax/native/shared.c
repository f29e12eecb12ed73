/* Where a call is made: jax's settings, the scope, the user's line. */

#include "shared.h"

struct handed_over our;
struct offsets at;
struct words word;

PyObject *setting(Py_ssize_t place) { return PyObject_GetAttr(PyTuple_GET_ITEM(our.settings, place), word.value); }

int are_set(PyObject *states, PyObject *values)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(states); i++) {
        PyObject *now = PyObject_GetAttr(PyTuple_GET_ITEM(states, i), word.value);
        if (now == NULL)
            return -1;
        PyObject *then = PyTuple_GET_ITEM(values, i);
        int same = now == then ? 1 : PyObject_RichCompareBool(now, then, Py_EQ);
        Py_DECREF(now);
        if (same != 1)
            return same;
    }
    return 1;
}

static PyObject *token_of_this_thread(void) /* no reference is taken */
{
    static uint64_t last; /* no other thread ever has the same */
    static PyObject *token;
    uint64_t thread = PyThreadState_GetID(PyThreadState_Get());
    if (token == NULL || thread != last) {
        PyObject *found = PyObject_GetAttr(our.this_thread, word.token);
        if (found == NULL)
            return NULL;
        Py_XSETREF(token, found);
        last = thread;
    }
    return token;
}

PyObject *scope_here(void)
{
    PyObject *scope = NULL;
    if (PyContextVar_Get(our.scope_variable, NULL, &scope) < 0)
        return NULL;
    if (scope != NULL && IS(scope, Scope) && GET(scope, Scope_task) == Py_None &&
        GET(scope, Scope_thread) == token_of_this_thread()) {
        PyObject *loop = PyObject_CallNoArgs(our.running_loop);
        Py_XDECREF(loop);
        if (loop == Py_None)
            return scope;
    }
    Py_XDECREF(scope);
    return PyErr_Occurred() ? NULL : PyObject_CallNoArgs(our.current_scope);
}

PyObject *where_here(void)
{
    PyFrameObject *frame = (PyFrameObject *)Py_XNewRef((PyObject *)PyEval_GetFrame());
    PyObject *found = NULL;
    while (frame != NULL) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        PyObject *known = PyObject_GetItem(our.INTERNAL, code->co_filename);
        if (known == Py_False)
            found = Py_BuildValue("Oi", code, PyFrame_GetLasti(frame));
        PyFrameObject *back = known == Py_True ? PyFrame_GetBack(frame) : NULL;
        Py_XDECREF(known);
        Py_DECREF(code);
        Py_DECREF(frame);
        frame = back;
    }
    return found != NULL || PyErr_Occurred() ? found : Py_NewRef(Py_None);
}
