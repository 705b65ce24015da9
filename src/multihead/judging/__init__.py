"""Judge translations: evaluate, compare, score, align, guard, explain."""
