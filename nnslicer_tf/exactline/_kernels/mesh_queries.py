"""Compiled loops over the faces of a `Mesh`, and over the values at its vertices."""

import numpy as np

from nnslicer_tf._kernels.compiled import compiled


@compiled
def area(corners, xy):
    """Return the area of a polygon, positive if counter-clockwise."""
    total = 0.0
    x0, y0 = xy[corners[0], 0], xy[corners[0], 1]
    for i in range(1, len(corners) - 1):
        a, b = corners[i], corners[i + 1]
        total += (xy[a, 0] - x0) * (xy[b, 1] - y0) - (xy[b, 0] - x0) * (xy[a, 1] - y0)
    return total / 2


@compiled
def box_tree(face_boxes):
    """Return a tree of bounding boxes of faces: order of the faces, boxes, nodes.

    A box is (smallest x and y, largest x and y); `nodes[n]` is the first child, whose sibling
    follows it, or -1, and the range of the node's faces in the order.
    """
    faces = len(face_boxes)
    order = np.arange(faces)
    boxes, nodes = np.empty((faces + 2, 4)), np.empty((faces + 2, 3), np.int64)
    nodes[0, 1], nodes[0, 2] = 0, faces
    count, at = 1, 0
    while at < count:
        first, last = nodes[at, 1], nodes[at, 2]
        own = order[first:last].copy()
        for i in range(2):
            boxes[at, i], boxes[at, i + 2] = face_boxes[own, i].min(), face_boxes[own, i + 2].max()
        nodes[at, 0] = -1
        if last - first > 4:
            axis = 0 if boxes[at, 2] - boxes[at, 0] > boxes[at, 3] - boxes[at, 1] else 1
            ranks = np.argsort(face_boxes[own, axis] + face_boxes[own, axis + 2])
            for i in range(len(ranks)):
                order[first + i] = own[ranks[i]]
            middle = (first + last) // 2
            nodes[at, 0] = count
            nodes[count, 1], nodes[count, 2] = first, middle
            nodes[count + 1, 1], nodes[count + 1, 2] = middle, last
            count += 2
        at += 1
    return order, boxes[:count].copy(), nodes[:count].copy()


@compiled
def locate(points, places, start, loop, order, boxes, nodes, slack):
    """Return the face that contains each point, -1 for none."""
    out = np.full(len(points), -1, np.int64)
    stack = np.empty(128, np.int64)
    for i in range(len(points)):
        x, y = points[i]
        deepest = -slack
        stack[0] = 0
        top = 1
        while top:
            top -= 1
            n = stack[top]
            box = boxes[n]
            if x < box[0] - slack or y < box[1] - slack or x > box[2] + slack or y > box[3] + slack:
                continue
            if nodes[n, 0] >= 0:
                stack[top], stack[top + 1] = nodes[n, 0], nodes[n, 0] + 1
                top += 2
                continue
            for f in order[nodes[n, 1] : nodes[n, 2]]:
                inside = np.inf
                for c in range(start[f], start[f + 1]):
                    a = loop[c]
                    b = loop[c + 1] if c + 1 < start[f + 1] else loop[start[f]]
                    dx, dy = places[b, 0] - places[a, 0], places[b, 1] - places[a, 1]
                    length = np.sqrt(dx * dx + dy * dy)
                    if length > 0:
                        off = dx * (y - places[a, 1]) - dy * (x - places[a, 0])
                        inside = min(inside, off / length)
                if inside >= deepest:
                    deepest, out[i] = inside, f
    return out


@compiled
def extended(values, sources, weights):
    """Append the values of new vertices to values `(positions, vertices, channels)`."""
    positions, vertices, channels = values.shape
    out = np.empty((positions, vertices + len(weights), channels))
    for p in range(positions):
        block = out[p]
        for v in range(vertices):
            for c in range(channels):
                block[v, c] = values[p, v, c]
        for i in range(len(weights)):
            a, b, weight = sources[i, 0], sources[i, 1], weights[i]
            for c in range(channels):
                block[vertices + i, c] = block[a, c] + weight * (block[b, c] - block[a, c])
    return out
