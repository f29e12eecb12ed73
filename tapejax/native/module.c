/* The calls that come over and over, without the interpreter in between.

What they do is said in Python, and each file here names the functions that say it. Here the same is done for the plain
case, on the same objects. In every other case Python's function is called, as if this were not there. What is not
built, or not wanted (TAPEJAX_NATIVE=0), is not missed.
*/

#include "shared.h"

#ifndef SOURCE
#define SOURCE ""
#endif

#define OBJECT_ROW(name) {#name, &our.name},
#define SLOT_ROW(owner, name) {#owner, #name, &at.owner##_##name},
#define WORD_ROW(name) {#name, &word.name},

static const struct { const char *name; PyObject **place; } OBJECT_ROWS[] = {OBJECTS(OBJECT_ROW)};
static const struct { const char *owner, *name; Py_ssize_t *offset; } SLOT_ROWS[] = {SLOTS(SLOT_ROW)};
static const struct { const char *name; PyObject **place; } WORD_ROWS[] = {
    WORDS(WORD_ROW) {"_general", &word.general}, {"backward()", &word.taken_by_backward}};

#define LENGTH(rows) (sizeof(rows) / sizeof((rows)[0]))

static int find_slots(PyObject *given)
{
    for (size_t i = 0; i < LENGTH(SLOT_ROWS); i++) {
        PyObject *owner = PyDict_GetItemString(given, SLOT_ROWS[i].owner);
        PyObject *member = owner == NULL ? NULL : PyObject_GetAttrString(owner, SLOT_ROWS[i].name);
        if (member == NULL || !Py_IS_TYPE(member, &PyMemberDescr_Type)) {
            Py_XDECREF(member);
            PyErr_Clear();
            PyErr_Format(PyExc_TypeError, "%s.%s is no slot", SLOT_ROWS[i].owner, SLOT_ROWS[i].name);
            return -1;
        }
        *SLOT_ROWS[i].offset = ((PyMemberDescrObject *)member)->d_member->offset;
        Py_DECREF(member);
    }
    return 0;
}

static PyObject *install(PyObject *module, PyObject *given)
{
    if (!PyDict_CheckExact(given)) {
        PyErr_SetString(PyExc_TypeError, "install takes a dict");
        return NULL;
    }
    for (size_t i = 0; i < LENGTH(OBJECT_ROWS); i++)
        if (PyDict_GetItemString(given, OBJECT_ROWS[i].name) == NULL) {
            PyErr_Format(PyExc_TypeError, "%s is missing", OBJECT_ROWS[i].name);
            return NULL;
        }
    if (find_slots(given) < 0)
        return NULL;
    for (size_t i = 0; i < LENGTH(OBJECT_ROWS); i++)
        Py_XSETREF(*OBJECT_ROWS[i].place, Py_NewRef(PyDict_GetItemString(given, OBJECT_ROWS[i].name)));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"install", install, METH_O, "Take the classes, functions and tables that this works with, by name."},
    {"backward", (PyCFunction)(void (*)(void))back, METH_FASTCALL,
     "backward(root, wrt, tape): the gradients; NotImplemented if Python is to do it. See engine/backward.py."},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "built", .m_doc = "Deferring calls, and going back, without the interpreter.",
    .m_size = -1, .m_methods = functions,
};

PyMODINIT_FUNC PyInit_built(void)
{
    for (size_t i = 0; i < LENGTH(WORD_ROWS); i++)
        if ((*WORD_ROWS[i].place = PyUnicode_InternFromString(WORD_ROWS[i].name)) == NULL)
            return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL || PyType_Ready(&CallType) < 0 || PyType_Ready(&MethodType) < 0 ||
        PyModule_AddObjectRef(module, "Call", (PyObject *)&CallType) < 0 ||
        PyModule_AddObjectRef(module, "Method", (PyObject *)&MethodType) < 0 ||
        PyModule_AddStringConstant(module, "SOURCE", SOURCE) < 0)
        return NULL;
    return module;
}
