"""Networks: Transformer, recurrent, pointer, BERT, classifiers."""
