"""Makes the kubeconfig of a job from the connection data of its nodes, with the code of Zuul's executor.

usage: zuul_kubeconfig.py KUBECONFIG DATA…

DATA is the `connection_port` of a node, as JSON. Prints the name of the context that the executor gives to each node,
one JSON text per line. The module of the executor needs many packages that no other test needs, so only this method of
it is loaded.
"""

import ast
import importlib.util
import json
import os
import sys
import types
from urllib.parse import urlsplit

import yaml

METHOD = "prepareKubeConfig"


def method():
    path = importlib.util.find_spec("zuul.executor.server").origin
    with open(path) as source:
        tree = ast.parse(source.read(), path)
    [found] = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == METHOD]
    names = {"os": os, "yaml": yaml, "urlsplit": urlsplit}
    exec(compile(ast.Module([found], []), path, "exec"), names)
    return names[METHOD]


def main(kubeconfig, *nodes):
    prepare, jobdir = method(), types.SimpleNamespace(kubeconfig=kubeconfig)
    for node in nodes:
        data = json.loads(node)
        prepare(None, jobdir, data)
        print(json.dumps(data["context_name"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
