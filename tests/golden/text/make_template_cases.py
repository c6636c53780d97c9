#!/usr/bin/env python3
"""Writes template_cases.json: what PyPI jinja2, set up as Hugging Face transformers does, makes of

  1. every chat template in templates/ with every conversation below, and
  2. a list of small templates, one per feature of the language.

needs: pip install jinja2        usage: make_template_cases.py   (run it after a change here, commit the JSON)

The templates are those that the models publish, written out for this test; smollm2.jinja is the one in the GGUF file
of the default model. A case has `expected`, or `error: true` where jinja2 raises.
"""
import datetime
import json
import pathlib

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent
NOW = 1_753_000_000  # 2025-07-20 08:26:40 UTC


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        def _body(self, caller):
            return caller()

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(f)
    return env


def m(role, content, **more):
    return {"role": role, "content": content, **more}


TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Wetter für eine Stadt \"jetzt\" <b>",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "e.g. Zürich, 東京"},
            "unit": {"type": "string", "enum": ["C", "F"]}}, "required": ["city"]}}},
    {"type": "function", "function": {
        "name": "add", "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number", "default": 1.5}, "b": {"type": "number"}},
                       "required": []}}},
]
CALL = [{"id": "abcdefghi", "type": "function",
         "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 3, "x": [1, 2.5, None, True]}}}]
TOOL_TALK = [m("user", "Weather?"), m("assistant", "", tool_calls=CALL),
             m("tool", "{\"temp\": 21}", tool_call_id="abcdefghi"), m("assistant", "21 degrees."), m("user", "Thanks")]

CONVERSATIONS = {
    "one": {"messages": [m("user", "Hello")]},
    "no prompt": {"messages": [m("user", "Hello"), m("assistant", "Hi there")], "add_generation_prompt": False},
    "system": {"messages": [m("system", "You are terse."), m("user", "Hello")]},
    "turns": {"messages": [m("system", " Be kind. "), m("user", "a"), m("assistant", "b"), m("user", "c"),
                           m("assistant", "d"), m("user", "e")]},
    "turns without system": {"messages": [m("user", "a"), m("assistant", "b"), m("user", "c")]},
    "spaces": {"messages": [m("user", "  \n leading and trailing \t\n"), m("assistant", "\n x \n"), m("user", " ")]},
    "unicode": {"messages": [m("system", "Größe 東京"), m("user", "🦙 naïve \u00a0 \u3000 '\"\\ {{ x }} {% y %} </s>")]},
    "empty": {"messages": [m("user", "")]},
    "wrong order": {"messages": [m("assistant", "I begin"), m("user", "no")]},
    "thinking": {"messages": [m("user", "q"), m("assistant", "<think>\nhm\n</think>\n\nanswer"), m("user", "again")],
                 "enable_thinking": False},
    "reasoning last": {"messages": [m("user", "q"), m("assistant", "answer", reasoning_content="\nwhy\n")],
                       "add_generation_prompt": False},
    "tools": {"messages": [m("system", "Use tools."), m("user", "Weather in Zürich?")], "tools": TOOLS},
    "tools, no system": {"messages": [m("user", "Weather in Zürich?")], "tools": TOOLS[:1]},
    "tools in system": {"messages": [m("user", "Hi")], "tools": TOOLS, "tools_in_user_message": False},
    "tool talk": {"messages": TOOL_TALK, "tools": TOOLS},
    "builtin tools": {"messages": TOOL_TALK[:2], "builtin_tools": ["brave_search", "code_interpreter"],
                      "date_string": "26 Jul 2024"},
    "parts": {"messages": [m("user", [{"type": "text", "text": " look "}, {"type": "image"}])]},
}

DATA = {
    "s": "Hello World", "u": "Grüße 🦙 東京", "e": "", "n": 7, "neg": -7, "f": 2.5, "t": True, "z": None,
    "l": [3, 1, 2], "words": ["b", "A", "c"], "d": {"b": 2, "a": 1, "items": "shadow"},
    "people": [{"name": "Ann", "age": 30, "tags": ["x"]}, {"name": "Bob", "age": 25, "tags": []}, {"name": "cy", "age": 30}],
    "nested": {"a": {"b": [1, {"c": "deep"}]}}, "multi": "one\ntwo\n\nthree",
}

FEATURES = r"""
{{ s }}|{{ n }}|{{ f }}|{{ t }}|{{ z }}|{{ missing }}|{{ e }}
{{ l }} {{ d }} {{ words }} {{ (1, 'a') }} {{ (1,) }} {{ () }} {{ [] }} {{ {} }} {{ [none, true, 1.0, 'q\'s', "d\"s"] }}
{{ ["it's", 'tab\t', 'nl\n', 'back\\', 'é', '\x07', '\u200b', '🦙'] }}
{{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ 1/3 }} {{ 100.0 }} {{ 1.5e300 * 1e10 }} {{ 2 ** 0.5 }}
{{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 ** 10 }} {{ 7 / 2 }} {{ 6 / 2 }}
{{ -7.5 // 2 }} {{ -7.5 % 2 }} {{ 2 ** -1 }} {{ (-2) ** 3 }} {{ -2 ** 2 }} {{ 1 - 1 - 1 }} {{ 2 ** 3 ** 2 }}
{{ 'a' ~ 1 ~ none ~ 2.0 ~ true ~ missing }} {{ 1 ~ 2 + 3 ~ 4 }}
{{ 'a' + 'b' }} {{ 'ab' * 3 }} {{ [1] * 3 }} {{ [1] + [2] }} {{ 3 * 'x' }} {{ 'x' * -1 }} {{ true + true }}
{{ 1 < 2 }} {{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ [1,2] < [1,3] }} {{ 1 == 1.0 }} {{ 1 == true }} {{ '1' == 1 }} {{ none == none }} {{ [1,[2]] == [1,[2]] }}
{{ 1 != 2 }} {{ 2 >= 2 }} {{ 'abc' >= 'abd' }} {{ {'a': 1} == {'a': 1} }} {{ (1,) == [1] }}
{{ 'ell' in s }} {{ 3 in l }} {{ 9 not in l }} {{ 'a' in d }} {{ 'x' in missing }} {{ 1 in [true] }} {{ not 3 in l }}
{{ n > 5 and 'yes' or 'no' }} {{ e or 'default' }} {{ none and 1 }} {{ not e }} {{ not not n }} {{ 0 or [] or 'last' }}
{{ 'a' if n > 5 else 'b' }} {{ 'a' if n > 50 }} {{ 'a' if e else 'b' if n else 'c' }} {{ ('x' if t) ~ 'y' }}
{{ l[0] }} {{ l[-1] }} {{ l[9] }} {{ s[0] }} {{ s[-1] }} {{ u[6] }} {{ d['a'] }} {{ d.a }} {{ d['zz'] }} {{ d.zz }} {{ nested.a.b[1].c }} {{ nested['a']['b'][0] }} {{ l.0 }}
{{ l[1:] }} {{ l[:1] }} {{ l[::-1] }} {{ s[1:4] }} {{ s[::-1] }} {{ u[5:8] }} {{ l[-2:] }} {{ l[5:] }} {{ s[:-1] }} {{ s[::2] }} {{ l[10:0:-1] }} {{ s[-3:-1] }} {{ (1,2,3)[1:] }}
{{ missing.x is defined }}
{{ missing.x }}
{{ missing + 1 }}
{{ missing() }}
{{ missing[0] }}
{{ missing is defined }} {{ n is defined }} {{ z is none }} {{ s is string }} {{ d is mapping }} {{ l is iterable }} {{ n is number }} {{ t is boolean }} {{ f is float }} {{ n is integer }} {{ t is integer }} {{ t is true }} {{ t is false }} {{ 1 is true }} {{ s is iterable }} {{ n is iterable }} {{ l is sequence }} {{ d is sequence }} {{ missing is undefined }} {{ missing is iterable }} {{ d is iterable }}
{{ n is odd }} {{ n is even }} {{ n is divisibleby 7 }} {{ n is divisibleby(3) }} {{ n is in [7, 8] }} {{ n is eq 7 }} {{ n is equalto 7 }} {{ n is ne 7 }} {{ n is gt 3 }} {{ n is lessthan 3 }} {{ z is sameas none }} {{ 'ABC' is upper }} {{ 'abc' is lower }} {{ '' is lower }}
{{ n is not none }} {{ not z is none }} {{ z is not none and n }} {{ missing is not defined or n }} {{ 1 + n is number }}
{{ '  x '|trim }}| {{ 'xxaxx'|trim('x') }} {{ s|length }} {{ u|length }} {{ l|length }} {{ d|length }} {{ missing|length }} {{ s|count }}
{{ u|upper }} {{ u|lower }} {{ 'straße'|upper }} {{ 'ÀÉ'|lower }} {{ 'hELLO wORLD'|capitalize }} {{ 'hello wORLD x1y a-b (c [d'|title }} {{ 'hello wORLD x1y a-b'.title() }}
{{ l|join(', ') }} {{ words|join }} {{ [1, none, 'x']|join('-') }} {{ people|join(', ', attribute='name') }} {{ s|join('.') }} {{ d|join(',') }}
{{ s|replace('l', 'L') }} {{ s|replace('l', 'L', 2) }} {{ 'aaa'|replace('aa', 'b') }} {{ 'ab'|replace('', '-') }}
{{ missing|default('x') }} {{ e|default('x') }} {{ e|default('x', true) }} {{ z|default('x') }} {{ missing|default }} {{ n|d(3) }} {{ e|d('y', boolean=true) }}
{{ l|first }} {{ l|last }} {{ []|first }} {{ s|first }} {{ s|last }} {{ d|first }} {{ 'abc'|list }} {{ d|list }} {{ l|reverse|list }} {{ 'abc'|reverse }}
{{ l|sort }} {{ words|sort }} {{ l|sort(reverse=true) }} {{ words|sort(case_sensitive=true) }} {{ people|sort(attribute='age')|map(attribute='name')|join(',') }} {{ l|min }} {{ l|max }} {{ l|sum }} {{ people|sum(attribute='age') }}
{{ d|items|list }} {{ d|dictsort }} {{ d|dictsort(reverse=true) }} {{ {'x': 2, 'y': 1}|dictsort(by='value') }}
{{ people|map(attribute='name')|list }} {{ words|map('upper')|list }} {{ words|map('replace', 'b', 'B')|join }} {{ people|map(attribute='zz', default='?')|list }} {{ people[:2]|map(attribute='tags.0', default='-')|list }}
{{ people|map(attribute='tags.0')|list }}
{{ people|selectattr('age', 'equalto', 30)|map(attribute='name')|join(',') }} {{ people|rejectattr('tags')|map(attribute='name')|list }} {{ people|selectattr('tags', 'defined')|list|length }} {{ l|select('odd')|list }} {{ l|reject('gt', 1)|list }} {{ [0, 1, '']|select|list }}
{{ '42'|int }} {{ '4x'|int }} {{ '4x'|int(5) }} {{ 4.9|int }} {{ '3.7'|int }} {{ '2.5'|float }} {{ 3|float }} {{ 'x'|float(1.5) }} {{ -3|abs }} {{ 5|string ~ 'x' }} {{ z|int }} {{ ' 12 '|int }}
{{ multi|indent }} {{ multi|indent(2, true) }} {{ multi|indent(width=1, blank=true) }} {{ 'x'|indent(3, first=true) }}
{{ none|map('upper')|list }} {{ none|map(attribute='a')|list }} {{ none|select|list }} {{ none|reject|list }}
{{ none|selectattr('a')|list }} {{ none|rejectattr('a', 'equalto', 1)|list }}
{{ none|list }}
{{ none|first }}
{{ 'x'|safe + '<' }} {{ '<' + 'x'|safe }} {{ '<'|safe|e }} {{ '<'|e|e }} {{ ('<'|safe) ~ '<' }} {{ ('a'|safe)*2 + '<' }}
{{ ('a'|safe).replace('a', '<') }} {{ ('<'|e|upper) + '&' }} {{ (' a '|safe).strip() + '<' }} {{ (' a '|safe|trim) + '<' }}
{{ ('a'|safe|string) + '<' }} {{ ('a'|safe)[0] + '<' }} {{ ('abc'|safe)[1:] + '<' }} {{ ('abc'|safe)[::2] + '<' }}
{{ ('-'|safe).join(['<', 'a']) }} {{ ('a b'|safe).split()[0] + '<' }} {{ ('a'|safe|replace('a', 'b')) + '<' }}
{{ ['<', 'a'|safe]|join }} {{ ('a'|safe|indent) + '<' }} {{ ('{}'|safe).format('<') }} {{ ('a'|safe|title) + '<' }}
{{ (1|safe) + '<' }} {{ ('a'|safe|default('x')) + '<' }} {{ ('a,b'|safe).partition(',')[2] + '<' }} {{ ('a'|safe) == 'a' }}
{{ s|safe }} {{ '<a & "b">'|e }} {{ ['a', 'A', 'b', 'a']|unique|list }} {{ [1, 1.0, 2]|unique|list }}
{{ d|tojson }} {{ people|tojson(indent=2) }} {{ u|tojson }} {{ u|tojson(ensure_ascii=true) }} {{ [1, 2.0, none, true, 'q"\n\t\\/<>&\u007f']|tojson }} {{ {}|tojson(indent=2) }} {{ []|tojson(indent=2) }} {{ d|tojson(sort_keys=true) }} {{ d|tojson(separators=(',', ':')) }} {{ {1: 'x', none: 'y', true: 'z', 1.5: 'w'}|tojson }} {{ (1, 2)|tojson }} {{ 1e100|tojson }}
{{ missing|tojson }}
{{ nested|tojson(indent=4) }}
{{ '  ab '.strip() }}| {{ 'xxaxx'.strip('x') }} {{ ' a '.lstrip() }}| {{ ' a '.rstrip() }}| {{ 'abcab'.rstrip('ab') }} {{ '\u00a0\u3000x\x1f'.strip() }}|
{{ 'a,b,,c'.split(',') }} {{ 'a b  c '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b c'.split(none, 1) }} {{ 'abc'.split('x') }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a\nb\r\nc\n'.splitlines() }}
{{ s.startswith('He') }} {{ s.endswith(('x', 'ld')) }} {{ s.upper() }} {{ s.lower() }} {{ 'hello world'.title() }} {{ 'HELLO'.capitalize() }} {{ s.replace('o', '0') }} {{ s.replace('o', '0', 1) }} {{ s.find('o') }} {{ s.rfind('o') }} {{ s.find('zz') }} {{ u.find('東') }} {{ s.count('l') }} {{ s.index('W') }}
{{ ', '.join(words) }} {{ '12'.isdigit() }} {{ 'ab'.isalpha() }} {{ ' '.isspace() }} {{ 'AB'.isupper() }} {{ 'ab1'.isalnum() }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }}
{{ 'x {} y {} {{}}'.format(1, 'b') }} {{ '{0}{1}{0}'.format('a', 'b') }} {{ '{n}'.format(n=5) }}
{{ d.get('a') }} {{ d.get('zz') }} {{ d.get('zz', 5) }} {{ d.keys()|list }} {{ d.values()|list }} {{ d.items()|list }} {{ d['items'] }} {{ [1, 2, 1].count(1) }} {{ [1, 2].index(2) }}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ x }};{% endfor %}
{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}{% for x in l %}{{ loop.previtem is defined }}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }} {% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }},{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for k, v in d|items %}{{ k }}{{ v }}{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for x in [] %}x{% else %}empty{% endfor %}{% for x in l if x > 1 %}{{ x }}/{{ loop.length }}{{ loop.last }} {% else %}none{% endfor %}{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}{% for c in 'äbc' %}{{ c }}.{% endfor %}{% for x in missing %}{{ x }}{% endfor %}
{% for x in range(5) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %} {{ range(3)|list }} {{ range(1, 4)|list }} {{ range(5, 0, -2)|list }}
{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}
{% for x in 5 %}{{ x }}{% endfor %}
{% for a, b in [1] %}{{ a }}{% endfor %}
{% set a = 1 %}{% set b, c = 2, 3 %}{{ a }}{{ b }}{{ c }}{% set x %}block {{ a }}{% endset %}{{ x }}{% set y | upper %}shout{% endset %}{{ y }}{% set t2 = 1, 2 %}{{ t2 }}
{% set x = 1 %}{% for i in l %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 99 %}{% endif %}{{ x }}
{% set ns = namespace(found=false, n=0) %}{% for i in l %}{% if i == 1 %}{% set ns.found = true %}{% endif %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.found }}{{ ns.n }}{{ ns.missing }}{% set ns.a, ns.b = 1, 2 %}{{ ns.a }}{{ ns['b'] }}
{% set d.a = 5 %}
{% macro greet(name, greeting='Hi', mark=greeting ~ '!') %}{{ greeting }} {{ name }}{{ mark }}{% endmacro %}{{ greet('Ann') }} {{ greet('Bob', 'Yo') }} {{ greet(name='C', mark='?') }} {{ greet() }} {{ greet('x')|upper }} {{ greet is callable }}
{% macro m() %}{{ k }}{{ n }}{% set q = 1 %}{{ q }}{% endmacro %}{{ m() }}{{ q }}{% set k = 8 %}{{ m() }}
{% macro outer(x) %}[{{ caller() }}{{ x }}]{% endmacro %}{% call outer(1) %}body{{ n }}{% endcall %}{% macro each(l) %}{% for i in l %}{{ caller(i) }},{% endfor %}{% endmacro %}{% call(v) each(l) %}<{{ v }}>{% endcall %}
{% macro fact(k) %}{% if k <= 1 %}1{% else %}{{ k * fact(k - 1)|int }}{% endif %}{% endmacro %}{{ fact(5) }}
{% macro a(x) %}{{ x }}{% endmacro %}{{ a(1, 2) }}
{% macro a(x) %}{{ x }}{% endmacro %}{{ a(y=2) }}
{% filter upper %}abc {{ s }}{% endfilter %} {% filter replace('a', 'b')|upper %}abc{% endfilter %} {% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }} {% raw %}{{ raw }} {% x %}{% endraw %}
{% generation %}gen {{ n }}{% set inside = 1 %}{% endgeneration %}{{ inside }}
{# comment #}a{#- strip -#} b {# {{ x }} #}c
{{ 'a' 'b' "c" }} {{ 'esc \n \t \\ \' \" \x41 \u00e9 \101 \q' }} {{ "it's" }} {{ '\U0001f999' }}
{{ {'a': {'b': 1}}['a']['b'] }} {{ {'a': 1, 'b': [1, {'c': 2}]}.b[1].c }} {{ {'x': 1,}.x }} {{ [1, 2,] }} {{ {'a': {'b': 1}} }}
{{ dict(a=1, b='x') }} {{ dict({'q': 1}, w=2) }} {{ dict(a=1).a }}
{{ strftime_now('%Y-%m-%d') }} {{ strftime_now('%d %b %Y, %H:%M:%S %j %A %B') }}
{{ raise_exception('stop here') }}
{{ 1 / 0 }}
{{ 'a' + 1 }}
{{ none + 1 }}
{{ 1 < 'a' }}
{{ l.append(4) }}
{{ ''.__class__ }}
{{ n|nosuchfilter }}
{{ n is nosuchtest }}
{% if %}{% endif %}
{{ 'unterminated }}
{% for x in l %}
{% nosuchtag %}
{{ (1 }}
{% endif %}
{% set x = %}
{{ True and true and not False }} {{ None is none }} {{ 'None' == None }}
{{ s | upper | replace('L', '_') | length }} {{ -n|abs }} {{ (n|string)[0] }} {{ 'x'.upper()|lower }} {{ s.split(' ')[0].lower() }} {{ (s ~ '!').upper() }}
{{ [1, 2, 3][1] }} {{ 'abc'[1] }} {{ (l|sort)[0] }} {{ l|first + 1 }} {{ not l }} {{ l is not string and s is string }} {{ 'a' in 'abc' and 'b' not in 'xyz' }}
{{ 10 // 3 * 3 + 10 % 3 == 10 }} {{ 1 if 0 else 2 if 0 else 3 }}
{{ [x for x in l] }}
{{ 'upper' is filter }} {{ 'nosuch' is filter }} {{ 'odd' is test }} {{ 'nosuch' is test }} {{ n is not test }} {{ s is callable }} {{ 'a' is sequence }}
{{ n is ge 7 }} {{ n is le 6 }} {{ n is lt 8 }} {{ n is greaterthan 7 }} {{ 1 is eq 1.0 }} {{ 'a' is sameas 'a' }} {{ 'A1' is upper }} {{ '1' is upper }} {{ neg is odd }}
{{ 'aXb'.swapcase() }} {{ 'Straße ΑΣ'.casefold() }} {{ '+7'.zfill(4) }} {{ 'ab'.zfill(1) }} {{ 'abc'.find('') }} {{ 'aaa'.count('') }} {{ 'abcb'.index('b') }} {{ 'abcb'.rfind('b') }}
{{ 'abc'.partition('x') }} {{ 'abc'.rpartition('x') }} {{ ' a b c '.rsplit() }} {{ 'aXbXc'.rsplit('X') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.endswith('b') }} {{ 'abc'.removeprefix('b') }} {{ 'abc'.removesuffix('b') }}
{{ 'ABC'.islower() }} {{ 'a b'.isalpha() }} {{ ''.isalpha() }} {{ '٣'.isdecimal() }} {{ '1.5'.isnumeric() }} {{ ''.isspace() }} {{ 'aB'.isupper() }} {{ 'abcba'.strip('ab') }} {{ 'abcba'.lstrip('ab') }} {{ ' a '.strip('') }}|
{% for c in '7A±²³´¸¹º½٣፨፩፱፲᧙᧚⁯⁰ⁱ⁴⁹⁺ⁿ₀₉₊Ⅷ①⑨⑩⑳⑴⑼⑽⒇⒈⒐⒑ⓩ⓪⓫⓴⓵⓽⓾⓿─❵❶❾❿➀➈➉➊➒➓〇㐄㐅㐆㒂㒃㒄㠩㠪㠫㭌㭍㭎䷿一丁丂七丄丆万丈三上乜九乞事二亍亓五井亖亗亾亿什仁仞仟仠仧仨仩伌伍伎佯佰佱儃億儅充兆兇全兩兪八公六兮區十卂千卅卆卋卌卍叀叁叄叅囚四囜声壱売壸壹壺幹幺幻廽廾廿开弋弌弎式弐弑拽拾拿捋捌捍柑柒染漅漆漇玕玖玗白百癿肅肆肇萫萬萭貭貮貯貲貳貴贯贰贱阠阡阢际陆陇陋陌降陷陸陹雵零雷索參塞沈拾若亮兩凉鈴零靈類六戮陸倫識什茶𐨿𐩀𐩃𐩄𐹠𐹨𐹩𑁒𑁚𑁛𝟘🄀🄊🄋𠀀𠀁𠀂𠁣𠁤𠁥𠃡𠃢𠃣𠄠𠄡𠄢𠤩𠤪𠤫𠦂𠦃𠦄𠦋𠦌𠦍𠦛𠦜𠦝𠫩𠫪𠫫𠫼𠫽𠫾𠬘𠬙𠬚𢎏𢎐𢎑𢦗𢦘𢦙𣬚𣬛𣬜𦉬𦉭𦉮𪎒廾𢌱' %}{{ [c.isdecimal(), c.isdigit(), c.isnumeric(), c.isalnum()]|map('int')|join }} {% endfor %}
{{ '½3'.isnumeric() }} {{ '3a'.isnumeric() }} {{ '²٣'.isdigit() }} {{ '½٣'.isdigit() }} {{ '三千'.isnumeric() }} {{ ''.isnumeric() }}
{{ '  1  2   3  '.split(none, 1) }} {{ ' a  '.split(none, 0) }} {{ 'a b'.split(' ', 0) }} {{ 'a b'.rsplit(' ', 0) }} {{ 'a '.split(none, 1) }}
{{ 'a\u2028b\x85c\x1cd\x0be\r\nf\n\ng'.splitlines() }} {{ 'a\r\nb\n'.splitlines(true) }} {{ '\n'.splitlines(keepends=true) }}
{{ 1 <= 1 }} {{ 'a' <= 'a' }} {{ 2 >= 2 }} {{ 1 < 1 }} {{ 'b' > 'b' }} {{ 1 <= 1 < 2 <= 2 }}
{{ ('' * 1000000000000000)|length }} {{ [] * 1000000000000000 }} {{ () * 3 }}
{{ ['b', 'a', 'C']|max }} {{ ['b', 'A']|min }} {{ ['b', 'a', 'C']|max(case_sensitive=true) }} {{ ['a', 'A']|min }} {{ ['A', 'a']|max }} {{ [{'n': 2}, {'n': 1}]|min(attribute='n') }}
{{ ['a', 'A', 'b']|unique|list }} {{ [{'n': 'x'}, {'n': 'X'}, {'n': 'y'}]|unique(attribute='n')|list }} {{ {'b': 1, 'A': 2}|dictsort }} {{ {'b': 1, 'a': 0}|dictsort(by='value') }}
{{ 'yes' if [1]|select('odd') else 'no' }} {{ 'yes' if [2]|select('odd') else 'no' }} {{ 'yes' if []|map('upper') else 'no' }} {{ 'yes' if []|reverse else 'no' }} {{ 'yes' if []|list else 'no' }} {{ []|unique is sequence }} {{ []|unique is iterable }} {{ [1]|map('int') == [1] }}
{{ '\u2028x\x1cy'|title }} {{ 'a-b (c) {d} <e> [f]g'|title }} {{ "it's é'x"|title }}
{{ '+7'|int }} {{ ' -7 '|int }} {{ '+-7'|int(5) }} {{ '++7'|int }} {{ '+1.5'|float }} {{ '1e3'|int }} {{ 'nan'|int(3) }} {{ '+'|int }}
{{ 'a\r\nb\n\nc\n'|indent }}| {{ ''|indent(2, true) }}| {{ 'a\n\nb'|indent(2, false, true) }}| {{ 'a\n\nb'|indent(2, true) }}|
{% for x in [1, 2] %}{{ x }}{% break %}{% else %}none{% endfor %} {% for x in [1, 2] %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% else %}none{% endfor %} {% for y in [1] %}{% for x in [1] %}{% continue %}{% else %}{% break %}{% endfor %}y{% endfor %}
{{ 1 // 0.1 }} {{ 1 % 0.1 }} {{ 3.0 % -3.0 }} {{ -1 // 0.3 }} {{ -1 % 0.3 }} {{ 1 // -3.0 }} {{ -0.5 // 2.0 }} {{ 0.5 // 2 }} {{ -0.0 // 2 }} {{ 7.5 // 2 }}
{{ ' a '|trim('') }}| {{ ' a '|trim(none) }}| {{ 'xax'|trim('x') }}| {{ [1, 2]|safe|length }} {{ true|safe|int(3) }}
{{ [1] + (2,) }}
{{ [1]|map('int')|length }}
{{ [1]|select('odd') <= [1] }}
{{ 'abc'.index('x') }}
{{ 'a'.split('') }}
{{ 'a'.zfill('x') }}
{{ 'a'.startswith(1) }}
{{ 'a'.strip(1) }}
{{ 5 is divisibleby 0 }}
{{ s is odd }}
{{ n is gt }}
""".strip("\n").split("\n")

# White space: tabs, newlines and signs around tags, with the newlines inside one case.
LAYOUT = [
    "a\n{% if true %}\nb\n{% endif %}\nc\n",
    "a\n  {% if true %}\n  b\n  {% endif %}\n  c",
    "a  {% if true %}  b  {% endif %}  c",
    "a\n  {%- if true -%}\n  b\n  {%- endif -%}\n  c",
    "a\n  {%+ if true %}\n  b\n  {%+ endif +%}\n  c",
    "  {{ n }}  \n  {{- n -}}  \n  {{ n }}\n",
    "  {# c #}\n  x {# c #}\n{#- c #}\n y {# c -#}\n z",
    "{% for x in l %}\n  {{ x }}\n{% endfor %}\n\n\nend\n\n",
    "{%- for x in l %}\n  {{- x }}\n{%- endfor %}",
    "{% set a = 1 %}\n\n{% set b = 2 %}\n{{ a }}\n{{ b }}\n",
    "{% raw %}\n  {{ x }}\n{% endraw %}\n",
    "  {%- raw -%}  {{ x }}  {%- endraw -%}  z",
    "x\r\n{% if true %}\r\ny\r\n{% endif %}\r\nz\rw",
    "\t{% if true %}\tb\n\t{% endif %}",
    "{{ 'a\nb' }}\n",
    "{% macro m() %}\n  x\n{% endmacro %}\n[{{ m() }}]",
    "a {{- ' b' }} {{ 'c ' -}} d",
    "{% if true -%}\n\n  x\n\n{%- endif %}",
    "{{ n }}\n\n",
    "\n\n{{ n }}",
    "x {% if true %}\n",
    "{% if true %}{% if false %}{% else %}\n k\n{% endif %}{% endif %}",
    "",
    "\n",
    "just text { not } a % tag # }} %}",
]


def case(env, source, variables):
    try:
        return {"expected": env.from_string(source).render(**variables)}
    except Exception:  # noqa: BLE001: whatever jinja2 raises, lowbit must fail as well
        return {"error": True}


def main():
    env = environment()
    templates = []
    for path in sorted((HERE / "templates").glob("*.jinja")):
        source = path.read_text()
        cases = []
        for name, conversation in CONVERSATIONS.items():
            variables = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True, **conversation}
            cases.append({"conversation": name, **case(env, source, variables)})
        templates.append({"template": path.name, "cases": cases})
    features = [{"source": s, **case(env, s, DATA)} for s in FEATURES + LAYOUT]
    out = {"now_unix_s": NOW, "conversations": CONVERSATIONS, "templates": templates, "data": DATA, "features": features}
    (HERE / "template_cases.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")
    errors = sum("error" in c for c in features)
    print(f"{len(templates)} templates x {len(CONVERSATIONS)} conversations, {len(features)} features ({errors} errors)")


if __name__ == "__main__":
    main()
