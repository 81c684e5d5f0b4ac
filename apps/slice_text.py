"""Slice sentences to find decisive words, compared with gradients and attention.

python apps/slice_text.py
python apps/slice_text.py --model text_lstm
"""

from reproduction.application import experiments, main

app = experiments(__doc__, "sentences", ("words", "WordSettings", "words:words"))

if __name__ == "__main__":
    main(app)
