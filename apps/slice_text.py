"""Slice sentences to find decisive words, compared with gradients and attention.

python apps/slice_text.py
python apps/slice_text.py --model text_lstm
"""

from reproduction.application import add_experiment, application, main
from reproduction.sentences.settings import WordSettings

app = application(__doc__)
add_experiment(app, "words", WordSettings, "reproduction.sentences.words:words")

if __name__ == "__main__":
    main(app)
