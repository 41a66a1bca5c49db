#!/usr/bin/env python3
"""Reduces Discord's OpenAPI description to the requests of the Discord client: reduce.py openapi.json >requests.json
Keeps their parameters, bodies and schemas, and drops texts and responses."""
import json
import sys

REQUESTS = {
    '/gateway/bot': ['get'],
    '/users/@me': ['get'],
    '/users/@me/guilds': ['get'],
    '/applications/@me': ['get'],
    '/applications/{application_id}/commands': ['put'],
    '/applications/{application_id}/guilds/{guild_id}/commands': ['put'],
    '/guilds/{guild_id}/members/{user_id}': ['get'],
    '/channels/{channel_id}': ['get'],
    '/channels/{channel_id}/typing': ['post'],
    '/channels/{channel_id}/messages': ['get', 'post'],
    '/channels/{channel_id}/messages/{message_id}': ['get', 'patch'],
    '/channels/{channel_id}/messages/{message_id}/threads': ['post'],
    '/channels/{channel_id}/messages/{message_id}/reactions/{emoji_name}/@me': ['put', 'delete'],
    '/channels/{channel_id}/webhooks': ['get', 'post'],
    '/webhooks/{webhook_id}/{webhook_token}': ['post'],
    '/webhooks/{webhook_id}/{webhook_token}/messages/@original': ['patch', 'delete'],
    '/interactions/{interaction_id}/{interaction_token}/callback': ['post'],
}


def without_texts(value):
    if isinstance(value, dict):
        return {k: without_texts(v) for k, v in value.items() if not (k in ('description', 'title') and isinstance(v, str))}
    return [without_texts(one) for one in value] if isinstance(value, list) else value


def collect(whole, value, found):
    if isinstance(value, dict):
        name = value.get('$ref')
        if isinstance(name, str) and name not in found:
            target = whole
            for part in name[2:].split('/'):
                target = target[part]
            found[name] = target
            collect(whole, target, found)
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            collect(whole, one, found)


def main():
    whole = json.load(open(sys.argv[1]))
    paths = {}
    for path, methods in REQUESTS.items():
        entry = whole['paths'][path]
        paths[path] = {'parameters': entry.get('parameters', [])}
        for method in methods:
            kept = {key: entry[method][key] for key in ('parameters', 'requestBody') if key in entry[method]}
            content = kept.get('requestBody', {}).get('content', {})
            if 'application/json' in content:
                # The payload_json of a multipart body has the same schema.
                body = {'application/json': content['application/json']}
                kept['requestBody'] = {**kept['requestBody'], 'content': body}
            paths[path][method] = kept
    found = {}
    collect(whole, paths, found)
    schemas = {name.rsplit('/', 1)[1]: schema for name, schema in sorted(found.items())}
    reduced = without_texts({'openapi': whole['openapi'], 'paths': paths, 'components': {'schemas': schemas}})
    lines = lambda part: ',\n'.join(f'{json.dumps(k)}:{json.dumps(v, separators=(",", ":"))}' for k, v in part.items())
    print(f'{{"openapi":{json.dumps(reduced["openapi"])},\n"paths":{{\n{lines(reduced["paths"])}\n}},\n'
          f'"components":{{"schemas":{{\n{lines(reduced["components"]["schemas"])}\n}}}}}}')


main()
