package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/cluster"
)

// Change writes the difference between two states of an object, based on the version of the first: if another client
// has written the object in the meantime, that is a conflict. Unlike Update it keeps fields that this program does not
// know, because custom resources may be newer than it. part is a subresource.
func (w Writer[T]) Change(ctx context.Context, before, after T, part ...string) (T, error) {
	was, err := fieldsOf(before)
	var is map[string]any
	if err == nil {
		is, err = fieldsOf(after)
	}
	if err != nil {
		var none T
		return none, fmt.Errorf("encode %s %s: %w", w.kind, cluster.Key(before), err)
	}
	patch := mergePatch(was, is)
	meta, _ := patch["metadata"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
	}
	meta["resourceVersion"] = before.GetResourceVersion()
	patch["metadata"] = meta
	return w.Patch(ctx, before, types.MergePatchType, patch, part...)
}

// fieldsOf returns an object as JSON has it. Numbers stay texts, because a float has not all digits of a time in
// nanoseconds.
func fieldsOf(o any) (map[string]any, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller says what it is about
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var out map[string]any
	err = d.Decode(&out)
	return out, err //nolint:wrapcheck // the caller says what it is about
}

// mergePatch returns the JSON merge patch from one state to another.
func mergePatch(before, after map[string]any) map[string]any {
	patch := map[string]any{}
	for key, was := range before {
		is, stays := after[key]
		old, ok := was.(map[string]any)
		now, ok2 := is.(map[string]any)
		switch {
		case !stays:
			patch[key] = nil
		case reflect.DeepEqual(was, is):
		case ok && ok2:
			patch[key] = mergePatch(old, now)
		default:
			patch[key] = is
		}
	}
	for key, is := range after {
		if _, there := before[key]; !there {
			patch[key] = is
		}
	}
	return patch
}
