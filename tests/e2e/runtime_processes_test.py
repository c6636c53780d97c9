"""The Python package's Model beside signals, threads, copies and child processes: each script runs in an interpreter of
its own."""
import os
import pathlib
import subprocess
import sys
import textwrap
import unittest

import cli

try:
    import numpy  # noqa: F401
    import xxhash  # noqa: F401
except ImportError:
    numpy = None

START = """\
import copy, os, pickle, random, signal, sys, threading, time
import numpy as np
import lowbit
from lowbit import LowbitError, Model
PATH = sys.argv[1]
LONG = {"max_tokens": 100, "ignore_eos": True, "temperature": 0}


def in_child(work):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


"""


@unittest.skipIf(numpy is None, "no numpy or no xxhash: pip install numpy xxhash")
class RuntimeProcesses(cli.CliTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.library = cli.shared_library()

    def script(self, text, *arguments, code=0):
        """The script's stdout; nothing may go to stderr."""
        env = cli.environment(LOWBIT_LIBRARY=str(self.library), PYTHONPATH=str(cli.SOURCE / "python"), PYTHONWARNINGS="ignore")
        done = subprocess.run([sys.executable, "-c", START + textwrap.dedent(text), self.hf, *map(str, arguments)], capture_output=True,
                              timeout=cli.TIMEOUT_S, env=env)
        self.assertEqual((done.returncode, done.stderr.decode()[-3000:]), (code, ""), done.stdout[-2000:])
        return done.stdout.decode()

    def test_ctrl_c_stops_within_a_token_and_raises(self):
        self.assertEqual(self.script("""
            model, caught, rng = Model(PATH, threads=1), 0, random.Random(1)
            wanted = model.generate("the river", **LONG)
            for _ in range(40):
                timer = threading.Timer(rng.uniform(0.001, 0.03), lambda: os.kill(os.getpid(), signal.SIGINT))
                try:
                    timer.start()  # on a busy machine it waits longer than the signal
                    until = time.monotonic() + 10
                    while time.monotonic() < until:
                        model.generate("the river", **LONG)
                except KeyboardInterrupt:
                    caught += 1
                assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
                assert model.generate("the river", **LONG) == wanted
            print(caught)
            """), "40\n")

    def test_other_handlers_are_heard_too(self):
        self.assertEqual(self.script("""
            model, beats = Model(PATH, threads=1), []
            signal.signal(signal.SIGUSR1, lambda *_: beats.append(1))
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
            def send():
                for _ in range(5):
                    time.sleep(0.01)
                    os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGTERM)
            threading.Thread(target=send).start()
            try:
                while True:
                    model.generate("the river", **LONG)
            finally:
                print(len(beats) > 0)
            """, code=7), "True\n")

    def test_ctrl_c_in_on_text_is_raised_there(self):
        self.assertEqual(self.script("""
            def wait(_):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(30)
            began = time.monotonic()
            try:
                Model(PATH, threads=1).generate("the river", on_text=wait, **LONG)
            except KeyboardInterrupt:
                print(time.monotonic() - began < 10)
            """), "True\n")

    def test_a_daemon_thread_at_the_end_of_the_interpreter(self):
        for wait in (0, 0.01, 0.03, 0.1):
            self.script(f"""
                model = Model(PATH, threads=2)
                def work():
                    while True:
                        model.generate("the river", on_text=lambda _: None, **LONG)
                threading.Thread(target=work, daemon=True).start()
                time.sleep({wait})
                """)

    def test_a_model_cannot_be_copied(self):
        self.assertEqual(self.script("""
            model, refused = Model(PATH, threads=1), 0
            for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
                try:
                    attempt(model).close()
                except LowbitError as error:
                    refused += "twice" in str(error)
            model.append([1, 2])
            model.close()
            print(refused)
            """), "3\n")

    def test_length_beside_close(self):
        self.script("""
            models, done = [Model(PATH, threads=1)], threading.Event()
            def look():
                while not done.is_set():
                    assert models[0].length in (0, 2) and models[0].vocab_size >= 0
            thread = threading.Thread(target=look)
            thread.start()
            for _ in range(60):
                models[0].append([1, 2])
                models[0].close()
                models[0] = Model(PATH, threads=1)
            done.set()
            thread.join()
            """)

    def test_logits_are_those_of_the_own_call(self):
        """Two threads append, nobody holds a lock: what is copied too late are the other's logits, and two results are
        the same."""
        self.assertEqual(self.script("""
            sys.setswitchinterval(1e-6)
            model, twice = Model(PATH, threads=1), 0
            def work(token, results):
                while model.length < 60:
                    try:
                        results.append(model.append([token]).tobytes())
                    except LowbitError:  # the other one is in a call
                        pass
            for _ in range(40):
                model.truncate()
                results = []  # each has other tokens before it
                threads = [threading.Thread(target=work, args=(token, results)) for token in (1, 2)]
                [t.start() for t in threads]
                [t.join() for t in threads]
                twice += len(results) - len(set(results))
            print(len(results) >= 60, twice)
            """), "True 0\n")

    def test_no_call_comes_between_logits_and_their_copy(self):
        self.assertEqual(self.script("""
            model, copy, refused = Model(PATH, threads=1), np.ctypeslib.as_array, []
            wanted = model.append([1])
            model.truncate()
            def other():
                try:
                    model.append([2])
                except LowbitError as error:
                    refused.append(error)
            def late(*given):
                np.ctypeslib.as_array = copy
                thread = threading.Thread(target=other)
                thread.start(), thread.join()
                return copy(*given)
            np.ctypeslib.as_array = late
            print(np.array_equal(model.append([1]), wanted), len(refused), model.length)
            """), "True 1 1\n")

    def test_a_child_of_fork_has_a_model_of_its_own(self):
        self.assertEqual(self.script("""
            model = Model(PATH, threads=3)
            wanted = model.append([1, 2, 3, 4])
            def again():
                model.truncate()
                same = np.array_equal(model.append([1, 2, 3, 4]), wanted)
                model.close()
                return same and bool(Model(PATH, threads=2).generate("the river", **LONG))
            print(in_child(again), model.length)
            model.truncate()
            print(np.array_equal(model.append([1, 2, 3, 4]), wanted))
            codes = []
            model.generate("x", max_tokens=2, ignore_eos=True, on_text=lambda _: codes.append(in_child(lambda: model.length > 0)))
            print(set(codes))
            """), "0 4\nTrue\n{0}\n")

    def test_a_fork_in_the_middle_of_a_call_leaves_a_named_error(self):
        self.assertEqual(self.script("""
            model = Model(PATH, threads=2)
            inside, go_on = threading.Event(), threading.Event()
            def wait(_):
                inside.set()
                go_on.wait()
            thread = threading.Thread(target=lambda: model.generate("x", on_text=wait, max_tokens=3, ignore_eos=True))
            thread.start()
            inside.wait()
            def ask():
                try:
                    model.append([1])
                except LowbitError as error:
                    named = "fork" in str(error)
                model.close()
                return named and len(Model(PATH, threads=2).append([1])) > 0
            print(in_child(ask))
            go_on.set()
            thread.join()
            """), "0\n")

    def test_a_child_of_fork_has_sessions_of_its_own(self):
        self.assertEqual(self.script("""
            model = Model(PATH, threads=2)
            one = model.session()
            wanted = one.append([1, 2, 3, 4])
            def again():
                one.truncate(2)
                return np.array_equal(one.append([3, 4]), wanted) and np.array_equal(one.fork().append([5]), model.append([1, 2, 3, 4, 5]))
            print(in_child(again), one.length)
            inside, go_on = threading.Event(), threading.Event()
            def wait(_):
                inside.set()
                go_on.wait()
            other = model.session()
            thread = threading.Thread(target=lambda: other.generate("x", on_text=wait, max_tokens=3, ignore_eos=True))
            thread.start()
            inside.wait()
            def ask():  # all of them depend on what the other thread was in the middle of
                refused = 0
                for call in (lambda: one.append([5]), lambda: other.append([5]), lambda: model.append([5]), model.session):
                    try:
                        call()
                    except LowbitError as error:
                        refused += "fork" in str(error)
                one.close(), other.close(), model.close()
                return refused == 4 and len(Model(PATH, threads=2).session().append([1])) > 0
            print(in_child(ask))
            go_on.set()
            thread.join()
            print(one.append([5]).size > 0)
            """), "0 4\n0\nTrue\n")

    def test_daemon_threads_with_sessions_at_the_end_of_the_interpreter(self):
        for wait in (0, 0.02, 0.1):
            self.script(f"""
                model = Model(PATH, threads=2)
                def work(session):
                    while True:
                        session.truncate()
                        session.generate("the river", **LONG)
                for _ in range(4):
                    threading.Thread(target=work, args=(model.session(),), daemon=True).start()
                time.sleep({wait})
                """)

    def test_ctrl_c_stops_a_session_beside_others(self):
        self.assertEqual(self.script("""
            model, stop = Model(PATH, threads=2), threading.Event()
            wanted = model.generate("the river", **LONG)
            wrong = []
            def work(session):
                while not stop.is_set():
                    session.truncate()
                    if session.generate("the river", **LONG) != wanted:
                        wrong.append(1)
            threads = [threading.Thread(target=work, args=(model.session(),)) for _ in range(3)]
            [t.start() for t in threads]
            own, caught = model.session(), 0
            for _ in range(10):
                timer = threading.Timer(0.03, lambda: os.kill(os.getpid(), signal.SIGINT))
                try:
                    timer.start()
                    until = time.monotonic() + 10
                    while time.monotonic() < until:
                        own.truncate()
                        own.generate("the river", **LONG)
                except KeyboardInterrupt:
                    caught += 1
            stop.set()
            [t.join() for t in threads]
            own.truncate()
            print(caught, wrong, own.generate("the river", **LONG) == wanted)
            """), "10 [] True\n")

    def test_a_file_that_shrinks_under_an_open_model(self):
        big = cli.make_model(self.dir / "big", "--dtype", "bf16", "--hidden", "256", "--layers", "1", "--ffn", "256")
        file = max(pathlib.Path(big).glob("*.safetensors"), key=lambda f: f.stat().st_size)
        self.assertGreater(file.stat().st_size, 400_000)  # smaller ones are copied
        self.assertEqual(self.script("""
            model = Model(sys.argv[2], threads=1)
            model.append([1])
            os.truncate(sys.argv[3], 4096)
            refused = 0
            for token in range(model.vocab_size):
                try:
                    model.truncate()
                    model.append([token])
                except LowbitError as error:
                    refused += "shortened" in str(error)
            print(refused > 0)
            """, big, file), "True\n")


if __name__ == "__main__":
    unittest.main()
