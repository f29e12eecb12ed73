"""The letters of the quizzes at the end of each notebook."""

QUIZZES: dict[str, str] = {
    "01": "bca",
    "02": "acb",
    "03": "bab",
    "04": "cba",
    "05": "bca",
    "06": "acb",
    "07": "bca",
    "08": "cab",
    "09": "bac",
    "10": "abc",
    "11": "cab",
    "12": "bca",
    "13": "acb",
    "14": "bac",
    "15": "cba",
}
