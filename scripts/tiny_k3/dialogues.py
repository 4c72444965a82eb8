"""Seeded generator of dialogues: recall, sums, a weather tool, repetition, opposites and small talk."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from . import words
from .xtml import OFF, Call, Dialogue, Message

TASKS = (
    "recall_system",
    "recall_user",
    "sum",
    "call",
    "result",
    "repeat",
    "chat",
    "no_tool",
    "opposite",
    "multi_turn",
)
"""What `DialogueGenerator.instance` can make; the last assistant message is the answer to be judged."""
EFFORTS = ("max", "high", "low", OFF)
_EFFORT_WEIGHTS = (0.28, 0.18, 0.14, 0.4)
_PLAIN_SYSTEM = "You are a helpful assistant."


@dataclass(frozen=True)
class Fact:
    """Something told once and asked for later."""

    key: tuple[str, ...]
    statement: str
    question: str
    answer: str
    think: str


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


class DialogueGenerator:
    """Dialogues of one split. Names, cities and sums of the test split are never trained on."""

    def __init__(self, seed: int | str, training: bool = True) -> None:
        self.random = random.Random(seed)
        self._training = training
        self._names = words.of_split(words.NAMES, training)
        self._cities = words.of_split(words.CITIES, training)
        self._unseen = {*words.of_split(words.NAMES, False), *words.of_split(words.CITIES, False)}
        self._effort = OFF
        self._tools: list[dict[str, object]] = []

    def conversation(self, turns: int) -> Dialogue:
        """`turns` exchanges of mixed tasks, with or without a system message, tools and thinking."""
        dialogue = self._start(None, None)
        messages = dialogue.messages
        facts: list[Fact] = []
        shape = self.random.random()
        if shape < 0.45:
            facts = self._facts(self.random.randint(1, 5), own_name=False)
            intro = _PLAIN_SYSTEM + " " if self.random.random() < 0.4 else ""
            messages.append(self._system_facts(facts, intro))
        elif shape < 0.6:
            messages.append(Message("system", _PLAIN_SYSTEM))
        for _ in range(turns):
            messages += self._turn(facts)
        return dialogue

    def instance(self, task: str, effort: str) -> Dialogue:
        """One unseen instance of a task of `TASKS`. Raises KeyError for another name."""
        makers: dict[str, Callable[[], list[Message]]] = {
            "recall_system": self._recall_system,
            "recall_user": self._recall_user,
            "sum": self._sum,
            "call": self._weather_call,
            "result": self._weather,
            "repeat": self._repeat,
            "chat": self._chat,
            "no_tool": self._weather,
            "opposite": self._opposite,
            "multi_turn": self._several_turns,
        }
        tools = {"call": True, "result": True, "no_tool": False}.get(task)
        dialogue = self._start(effort, tools)
        dialogue.messages += makers[task]()
        return dialogue

    # Dialogue frame

    def _start(self, effort: str | None, tools: bool | None) -> Dialogue:
        """An empty dialogue; None leaves effort or tools to chance."""
        self._effort = effort or self.random.choices(EFFORTS, _EFFORT_WEIGHTS)[0]
        if tools is None:
            weather, clock = words.WEATHER_TOOL, words.TIME_TOOL
            choices: list[list[dict[str, object]]] = [[weather], [clock, weather], [weather, clock], []]
            self._tools = self.random.choices(choices, (0.3, 0.04, 0.04, 0.62))[0]
        else:
            self._tools = [words.WEATHER_TOOL] if tools else []
        return Dialogue(self._effort, list(self._tools))

    def _turn(self, facts: list[Fact]) -> list[Message]:
        """One exchange; facts told in it are added to `facts`."""
        makers: dict[Callable[[], list[Message]], float] = {
            self._sum: 1.6,
            self._repeat: 2.2,
            self._chat: 0.45,
            self._opposite: 0.7,
            self._weather: 1.6 if self._tools else 0.25,
        }
        if len(self._tools) > 1:
            makers[self._time] = 0.8
        makers[lambda: self._tell_new(facts)] = 1.4
        if facts:
            makers[lambda: self._recall(self.random.choice(facts))] = 4.5
        return self.random.choices(list(makers), list(makers.values()))[0]()

    def _exchange(self, user: str, think: str, answer: str, calls: tuple[Call, ...] = ()) -> list[Message]:
        return [Message("user", user), self._assistant(think, answer, calls)]

    def _assistant(self, think: str, answer: str, calls: tuple[Call, ...] = ()) -> Message:
        return Message("assistant", answer, "" if self._effort == "low" else think, calls)

    def _system_facts(self, facts: list[Fact], intro: str = "") -> Message:
        return Message("system", intro + " ".join(_capital(fact.statement) + "." for fact in facts))

    # Words

    def _syllables(self, least: int = 2, most: int = 3) -> str:
        count = self.random.randint(least, most)
        stem = "".join(self.random.choice(words.SYLLABLES) for _ in range(count))
        return stem + self.random.choice(words.TRAINING_ENDINGS if self._training else words.ENDINGS)

    def _invented(self) -> str:
        """A word for training that is not in the test split: syllables, or two names spliced."""
        pool = self._names + self._cities
        while True:
            if self.random.random() < 0.5:
                word = self._syllables(1).capitalize()
            else:
                first, second = self.random.choice(pool), self.random.choice(pool)
                head = first[: self.random.randint(1, 4)]
                word = (head + second[self.random.randint(1, max(1, len(second) - 2)) :]).capitalize()
            if word not in self._unseen:
                return word

    def _proper(self, known: list[str]) -> str:
        if self._training:
            return self._invented() if self.random.random() < 0.5 else self.random.choice(known)
        return self._syllables().capitalize() if self.random.random() < 0.25 else self.random.choice(known)

    def _name(self) -> str:
        return self._proper(self._names)

    def _city(self) -> str:
        return self._proper(self._cities)

    def _thing(self) -> str:
        return f"{self.random.choice(words.COLOURS)} {self.random.choice(words.OBJECTS)}"

    # Facts

    def _fact(self, kind: str) -> Fact:
        choice = self.random.choice
        if kind == "code":
            thing, code = self._thing(), str(self.random.randint(1000, 9999))
            told = f"the code of the {thing} is {code}"
            ask = choice(["What is the code of the {}?"] * 2 + ["Tell me the code of the {}."])
            return self._made(kind, thing, told, ask, f"They want the code of the {thing}.")
        if kind == "where":
            thing = self._thing()
            told = f"the {thing} is in the {choice(words.ROOMS)}"
            return self._made(kind, thing, told, "Where is the {}?", f"They want the place of the {thing}.")
        name = self._name()
        if kind == "lives":
            told = f"{name} lives in {self._city()}"
            return self._made(kind, name, told, "Where does {} live?", f"They want the city of {name}.")
        if kind == "likes":
            told = f"{name} likes {choice(words.LIKES)}"
            think = f"They want to know what {name} likes."
            return self._made(kind, name, told, "What does {} like?", think)
        question = choice(["What is my name?", "Who am I?"])
        return Fact(("me",), f"my name is {name}", question, f"Your name is {name}.", "They want their name.")

    @staticmethod
    def _made(kind: str, subject: str, told: str, question: str, think: str) -> Fact:
        return Fact((kind, subject), told, question.format(subject), _capital(told) + ".", think)

    def _facts(self, count: int, own_name: bool = True, told: list[Fact] | None = None) -> list[Fact]:
        """`count` facts about different things, none about those in `told`. In training a third of the sets
        are all of one kind, so that only the subject tells them apart."""
        kinds = ["code", "code", "lives", "likes", "where"] + ["me"] * own_name
        if self._training and self.random.random() < 0.35:
            kinds = [self.random.choice(kinds[:5])]
        used = {fact.key for fact in told or []}
        facts: list[Fact] = []
        while len(facts) < count:
            fact = self._fact(self.random.choice(kinds))
            if fact.key not in used:
                used.add(fact.key)
                facts.append(fact)
        return facts

    def _tell(self, fact: Fact) -> list[Message]:
        statement = fact.statement
        form = self.random.choice(["Remember this: {}.", "Remember: {}.", "{}.", "Note that {}."])
        text = form.format(_capital(statement) if form.startswith("{}") else statement)
        return self._exchange(text, "They tell me a fact.", "OK, I will remember it.")

    def _tell_new(self, facts: list[Fact]) -> list[Message]:
        fact = self._facts(1, told=facts)[0]
        facts.append(fact)
        return self._tell(fact)

    def _recall(self, fact: Fact) -> list[Message]:
        return self._exchange(fact.question, fact.think, fact.answer)

    # Tasks

    def _recall_system(self) -> list[Message]:
        facts = self._facts(self.random.randint(2, 4), own_name=False)
        return [self._system_facts(facts), *self._distraction(), *self._recall(self.random.choice(facts))]

    def _recall_user(self) -> list[Message]:
        facts = self._facts(self.random.randint(1, 3))
        told = [message for fact in facts for message in self._tell(fact)]
        return [*told, *self._distraction(), *self._recall(self.random.choice(facts))]

    def _distraction(self) -> list[Message]:
        """Half of the time an unrelated exchange between fact and question."""
        if self.random.random() < 0.5:
            return []
        return self.random.choice([self._sum, self._chat, self._repeat])()

    def _several_turns(self) -> list[Message]:
        """Four to six exchanges of a conversation, of which the last is judged."""
        facts: list[Fact] = []
        return [message for _ in range(self.random.randint(4, 6)) for message in self._turn(facts)]

    def _sum(self) -> list[Message]:
        while True:
            a, b = self.random.randint(0, 50), self.random.randint(0, 50)
            if words.is_training_sum(a, b) == self._training:
                break
        forms = ["What is {} + {}?", "{} + {}", "{} + {} = ?", "How much is {} + {}?", "What is {} plus {}?"]
        question = self.random.choice([*forms, "Add {} and {}."]).format(a, b)
        units = a % 10 + b % 10
        tens = a // 10 + b // 10 + units // 10
        steps = f"{a % 10} + {b % 10} = {units}, {a // 10} + {b // 10} + {units // 10} = {tens}"
        return self._exchange(question, f"{a} + {b}: {steps}.", f"{a} + {b} = {a + b}.")

    def _repeat(self) -> list[Message]:
        count = self.random.randint(2, 9 if self._training else 7)
        phrase = " ".join(self._phrase_word() for _ in range(count))
        phrase += self.random.choice(["", "", ".", "!", "?"])
        forms = [
            "Repeat this phrase exactly: {}",
            "Repeat exactly: {}",
            "Repeat after me: {}",
            "Say this: {}",
        ]
        return self._exchange(self.random.choice(forms).format(phrase), "I must repeat the phrase.", phrase)

    def _phrase_word(self) -> str:
        kinds = ("invented", "number", "name", "thing", "word")
        weights = (0.35, 0.1, 0.1, 0.06, 0.39) if self._training else (0.25, 0.07, 0.06, 0.06, 0.56)
        kind = self.random.choices(kinds, weights)[0]
        if kind == "invented":
            spliced = self._training and self.random.random() < 0.3
            return self._invented().lower() if spliced else self._syllables(1, 3)
        if kind == "number":
            return str(self.random.randint(0, 9999))
        if kind == "name":
            return self._name()
        return self._thing() if kind == "thing" else self.random.choice(words.PHRASE_WORDS)

    def _chat(self) -> list[Message]:
        kind = self.random.choices(("greet", "who", "thanks", "other"), (0.35, 0.3, 0.15, 0.2))[0]
        choice = self.random.choice
        if kind == "greet":
            return self._exchange(choice(words.GREETINGS), "They greet me.", "Hello! How can I help you?")
        if kind == "who":
            answer = "I am Tiny K3, a very small test model."
            return self._exchange(choice(words.IDENTITY_QUESTIONS), "They ask who I am.", answer)
        if kind == "thanks":
            return self._exchange(choice(words.THANKS), "They thank me.", "You are welcome!")
        answer = "Sorry, I am too small to do that."
        return self._exchange(choice(words.OUT_OF_SCOPE), "I can not do that.", answer)

    def _opposite(self) -> list[Message]:
        pair = list(self.random.choice(words.OPPOSITES))
        self.random.shuffle(pair)
        word, other = pair
        question = self.random.choice([f"What is the opposite of {word}?", f"Opposite of {word}?"])
        think = f"They want the opposite of {word}."
        return self._exchange(question, think, f"The opposite of {word} is {other}.")

    def _weather_question(self, city: str) -> str:
        forms = ["What is the weather in {}?", "How is the weather in {}?", "What's the weather like in {}?"]
        return self.random.choice([*forms, "Weather in {}?", "Tell me the weather in {}."]).format(city)

    def _weather(self) -> list[Message]:
        """Question, call, tool result and answer; without a tool an excuse."""
        city = self._city()
        if not self._tools:
            excuse = "Sorry, I have no weather tool."
            return self._exchange(self._weather_question(city), "I have no weather tool.", excuse)
        sky, degrees = self.random.choice(words.SKIES), self.random.randint(-9, 39)
        forms = [
            json.dumps({"city": city, "sky": sky, "temperature": degrees}),
            json.dumps({"sky": sky, "temperature": degrees}, separators=(",", ":")),
            f"{sky}, {degrees} degrees",
            json.dumps({"temperature": degrees, "sky": sky}),
        ]
        result = Message("tool", self.random.choice(forms), tool="get_weather")
        answer = f"It is {sky} in {city}, {degrees} degrees."
        call = self._tool_call(self._weather_question(city), "weather", city)
        return [*call, result, self._assistant(f"The tool says {sky}, {degrees} degrees.", answer)]

    def _weather_call(self) -> list[Message]:
        return self._weather()[:2]

    def _tool_call(self, question: str, subject: str, city: str) -> list[Message]:
        tool = f"get_{subject}"
        think = f"I need the {subject} in {city}, so I call {tool}."
        return self._exchange(question, think, "", (Call(tool, {"city": city}),))

    def _time(self) -> list[Message]:
        city = self._city()
        time = f"{self.random.randint(0, 23):02d}:{self.random.randint(0, 59):02d}"
        question = self.random.choice([f"What time is it in {city}?", f"Tell me the time in {city}."])
        answer = self._assistant(f"The tool says {time}.", f"It is {time} in {city}.")
        return [*self._tool_call(question, "time", city), Message("tool", time, tool="get_time"), answer]
