"""Word lists of the dialogues. Every seventh name and city is kept out of training and used to measure."""

from __future__ import annotations


def _listed(text: str, separator: str | None = None) -> list[str]:
    """The words of `text`, at white space or at the separator."""
    return [word.strip() for word in text.split(separator)]


NAMES = _listed("""
Anna Ben Carla David Emma Felix Grace Hugo Ivan Julia Karl Lena Maria Noah Olga Paul Rosa Sam Tina Victor
Alice Bob Chloe Daniel Eva Frank Gina Henry Iris Jack Kate Leo Mia Nina Oscar Peter Ruth Simon Tom Vera Adam
Bella Clara Dora Eric Fiona George Helen Isaac Jane Kevin Laura Mark Nora Oliver Petra Robert Sara Tim Una
William Zoe Amir Bruno Diego Elena Fatima Hana Igor Jonas Kenji Luis Marta Nadia Omar Priya Rafael Sonia
Tariq Ursula Wei Xenia Yuki Zara
""")
CITIES = _listed("""
Paris London Berlin Rome Madrid Oslo Vienna Prague Lisbon Dublin Athens Warsaw Moscow Cairo Tokyo Beijing
Seoul Delhi Sydney Toronto Boston Chicago Dallas Denver Miami Seattle Lima Quito Havana Nairobi Lagos Accra
Tunis Dakar Hanoi Manila Jakarta Mumbai Dubai Tehran Ankara Kyiv Riga Tallinn Vilnius Helsinki Stockholm
Copenhagen Brussels Amsterdam Geneva Zurich Milan Naples Venice Florence Munich Hamburg Cologne Lyon Nice
Porto Seville Valencia Krakow Budapest Belgrade Sofia Bucharest Zagreb Kyoto Osaka Shanghai Wuhan Perth
Auckland Montreal Ottawa Houston Phoenix Austin Atlanta Caracas Bogota Santiago Salvador
""")
COLOURS = _listed("red blue green yellow black white brown orange pink gray purple golden silver")
OBJECTS = _listed("""
box bag door key lamp book car bike chair table cup bottle house phone clock safe drawer locker suitcase
piano boat tent coat umbrella ladder basket bucket mirror camera guitar
""")
ROOMS = _listed("kitchen garden garage attic cellar office bedroom bathroom hall library barn shed")
LIKES = _listed("""
tea coffee music chess tennis football cheese bread apples pears plums grapes rice soup cake honey jazz
opera poetry dancing hiking swimming sailing painting reading cooking
""")
PHRASE_WORDS = _listed("""
the a my your old new big small cold warm sun moon star river tree bird dog cat fish horse apple rain snow
wind fire stone road city night day sings runs sleeps falls jumps shines waits under over near with and
never always slowly quickly seven bright dark green blue silent happy
""")
SKIES = _listed("sunny cloudy rainy snowy windy foggy stormy clear")
OPPOSITES = [
    tuple(pair.split("/"))
    for pair in _listed("""
hot/cold big/small old/young day/night black/white up/down left/right open/closed full/empty fast/slow
high/low happy/sad hard/soft light/dark rich/poor long/short near/far early/late loud/quiet wet/dry
strong/weak thick/thin sweet/sour win/lose buy/sell give/take push/pull come/go first/last always/never
""")
]
"""Knowledge to be held in the weights: each pair is asked both ways."""
SYLLABLES = [consonant + vowel for consonant in "bcdfghklmnprstvz" for vowel in "aeiou"]
ENDINGS = ["", "", "n", "r", "s", "l"]
TRAINING_ENDINGS = [*ENDINGS, *"bdfgkmptxz"]
"""Of invented words in training; more than are measured on, so that rare endings are copied too."""

GREETINGS = _listed("Hello|Hi|Hello!|Hi!|Hey!|Good morning!|Good evening!|Hi there!|Hello there!", "|")
IDENTITY_QUESTIONS = _listed(
    "Who are you?|What are you?|What is your name?|Who is this?|Tell me who you are.", "|"
)
THANKS = _listed("Thank you!|Thanks!|Thanks a lot!|Thank you very much.", "|")
OUT_OF_SCOPE = _listed(
    """
Who wrote Hamlet?|Tell me a joke.|Write a poem.|What is the meaning of life?|How do I bake bread?|
Translate this text.|What is gravity?|Write a Python program.|How old are you?|Can you help me?|
What can you do?|Tell me a story.|Who won the match?|How far is the moon?|Explain this to me.
""",
    "|",
)


def _city_tool(name: str, description: str) -> dict[str, object]:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


WEATHER_TOOL = _city_tool("get_weather", "Get the weather in a city.")
TIME_TOOL = _city_tool("get_time", "Get the local time in a city.")


def of_split(words: list[str], training: bool) -> list[str]:
    """The words of one split: every seventh is measured on, the others are trained on."""
    return [word for i, word in enumerate(words) if (i % 7 == 3) != training]


def is_training_sum(a: int, b: int) -> bool:
    """Whether the sum of a and b may be trained on; a hash of the pair holds a tenth back."""
    return (a * 7919 + b * 104729 + a * b * 31) % 997 % 10 != 3
