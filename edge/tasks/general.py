"""General questions: what any instruct model is asked and told, and easy ones with known answers.

Learning a person's own answers must not cost what the model knew before. While it learns them, it is held to what it makes of the training
questions here (edge.learning.imitation); the promotion gate asks it the held-out ones.
"""

from __future__ import annotations

from dataclasses import replace

from edge.core.answer_key import OwnKey
from edge.core.types import AnswerKind, Message, Split, TaskItem
from edge.tasks.source import ListedItems

LABEL = "general"
_TO_KEEP = """\
What is the capital of Spain?
What is the capital of Canada?
Which city is called the Big Apple?
What is the largest country in the world?
Where is the Eiffel Tower?
What is the tallest mountain in the world?
How many continents are there?
Which language do people speak in Mexico?
What is the currency of Japan?
Where do penguins live?
Who discovered gravity?
Who invented the telephone?
Who was Albert Einstein?
Who painted The Starry Night?
When did the Second World War end?
Who is the head of a company?
What is the smallest prime number?
What is 7 times 6?
How many hours are in a day?
How many players are in a football team?
In which month does the year begin?
Which day comes after Monday?
At what time of the year do leaves fall?
What colour is grass?
What is the opposite of big?
What is the name of the longest bone in the human body?
Which animal gives us milk?
Which bird cannot fly?
What is the difference between a cat and a dog?
What is a good name for a cat?
What does a thermometer measure?
What is the speed of light?
Which metal is liquid at room temperature?
What is photosynthesis?
Why is the sky blue?
Is the Earth flat?
How old is the universe?
What is machine learning?
Explain what a computer program is.
What is the password of a computer for?
What is the code of a country for telephone calls?
How does a bicycle stay upright?
What is the main ingredient of bread?
How do I boil an egg?
What do I need for making pancakes?
Name three kinds of fruit.
How much water should I drink in a day?
What should I wear when it rains?
Give me three tips for sleeping better.
Can you help me plan a birthday party?
List the colours of the rainbow.
Tell me a joke.
Hello, how are you?
What is your name?
Write a short poem about the sea.
Write a polite email that asks for a day off.
Translate "good morning" into French.
Summarise the story of Cinderella in one sentence.
Write a Python function that adds two numbers.
Correct this sentence: She go to school every day.
Is this review positive or negative? "The food was cold and the waiter was rude."
What is the plural of child?
How much does a litre of water weigh?
Which number comes after nineteen?"""
_IN_CHATS = """\
Hello!
Hey, what's up?
Good morning.
I'm Anna.
I am Peter and I work as a teacher in Berlin.
Nice to meet you.
Thank you very much!
Yes, please.
No, that is wrong.
Okay, see you tomorrow.
I feel a bit sad today.
It is so hot outside.
I have been learning to play the guitar.
My brother is a nurse, and he works at night.
We watched a film about space last weekend.
Our holiday begins on Friday, and I am looking forward to it.
Let's talk about food.
I have a question.
Who made you?
Are you a robot?
How old are you?
I am hungry.
I am bored.
My back hurts.
I had a sandwich for lunch.
I am going to bed now.
See you later!
It was nice talking to you.
I passed my exam!
We are going to the beach tomorrow.
I think you are right.
That is funny.
I don't like that answer.
The train was late again.
I would like to learn Spanish.
Guess what happened to me.
Surprise me.
Say something nice.
I bought some flowers for my mother.
The weather will be nice at the weekend.
Do you know any games?
Help!
Hello | Hello! How can I help you today? | What can you help me with?
Hi, I'm Maria. | Hello Maria, nice to meet you! | Do you know my name?
I live in Madrid. | Madrid is a beautiful city. | Where do I live?
I like dogs. | Dogs are wonderful companions. Do you have one? | Yes, he is called Rex.
What is the capital of Portugal? | The capital of Portugal is Lisbon. | How many people live there?
I want to cook something. | Great! What ingredients do you have? | Rice, tomatoes and an onion.
Can you tell me a story? | Of course! Once upon a time there was a fox. | What happened then?
I have to write a report. | What is the report about? | It is about our sales in spring.
My computer is slow. | Have you tried restarting it? | Yes, but it did not help.
What is 12 plus 5? | 12 plus 5 is 17. | Thanks!
I can't sleep. | I'm sorry to hear that. Do you drink coffee in the evening? | Sometimes.
Hi | Hi there! What would you like to talk about? | I don't know."""
_TO_EXAMINE = """\
What is the capital of the United Kingdom? = London
What is the capital of Russia? = Moscow
What is the capital of China? = Beijing
What is the capital of Greece? = Athens
What is the capital of Australia? = Canberra
What is the capital of Austria? = Vienna
In which country is the city of Barcelona? = Spain
In which country are the pyramids of Giza? = Egypt
In which country is the Taj Mahal? = India
Which country is famous for pizza and pasta? = Italy
Which language is spoken in Germany? = German
Which ocean lies between Europe and America? = Atlantic, Atlantic Ocean
What is the largest desert in Africa? = Sahara, Sahara Desert
What is the currency of the United Kingdom? = pound, pound sterling
Which planet do we live on? = Earth
Which planet is closest to the Sun? = Mercury
Which planet is known for its rings? = Saturn
What does the Earth orbit? = Sun
What is the natural satellite of the Earth called? = Moon
What is the chemical symbol of oxygen? = O
What is the chemical formula of water? = H2O
Which gas do we need to breathe? = oxygen
What is frozen water called? = ice
At how many degrees Celsius does water freeze? = 0, zero
Which metal do magnets attract? = iron
What force pulls things to the ground? = gravity
How many minutes are in an hour? = 60, sixty
How many seconds are in a minute? = 60, sixty
How many days are in a year that is no leap year? = 365
How many letters are in the English alphabet? = 26, twenty-six
How many wheels does a car have? = 4, four
How many sides does a triangle have? = 3, three
How many legs does a dog have? = 4, four
How many fingers are on one hand? = 5, five
What is 2 plus 2? = 4, four
What is 10 minus 4? = 6, six
What is 3 times 3? = 9, nine
What is half of 20? = 10, ten
Which month comes after January? = February
Which day comes after Friday? = Saturday
What is the first month of the year? = January
Which season is the coldest? = winter
What is the opposite of up? = down
What is the opposite of day? = night
What is the opposite of black? = white
What colour is a ripe banana? = yellow
What colour is snow? = white
What colour do you get when you mix blue and yellow? = green
Which animal says meow? = cat
Which animal is the largest on Earth? = whale, blue whale
Which insect makes webs? = spider
What is a young dog called? = puppy
What do cows eat? = grass
What do fish use to breathe? = gills
With which organ do we think? = brain
With which organ do we see? = eye, eyes
Who wrote Hamlet? = Shakespeare, William Shakespeare
Who developed the theory of relativity? = Einstein, Albert Einstein
Who was the first man on the Moon? = Neil Armstrong, Armstrong
Which instrument has black and white keys? = piano"""


def general_source() -> ListedItems:
    """The source called `general`: training questions without an answer key, some within a conversation, held-out ones with one."""
    items = [_item(question, (), "train") for question in _TO_KEEP.splitlines()]
    items += map(turn_in_a_chat, _IN_CHATS.splitlines())
    for line in _TO_EXAMINE.splitlines():
        question, _, answers = line.partition(" = ")
        items.append(_item(question, tuple(answers.split(", ")), "test"))
    return ListedItems(items, name=LABEL, order_name=LABEL, hint="")


def turn_in_a_chat(line: str) -> TaskItem:
    """What a person says last in a conversation whose turns stand in one line, `I like dogs. | So do I! | Mine is called Rex.`"""
    *earlier, said = line.split(" | ")
    context = tuple(Message("assistant" if place % 2 else "user", text) for place, text in enumerate(earlier))
    return replace(_item(said, (), "train"), context=context)


def _item(question: str, answers: tuple[str, ...], split: Split) -> TaskItem:
    key = OwnKey("text", answers).to_json() if answers else ""
    return TaskItem(f"{LABEL}/{question}", LABEL, LABEL, 0, split, question, key, AnswerKind.FEEDBACK, 4)
