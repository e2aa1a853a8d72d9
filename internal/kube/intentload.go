package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"volplane.dev/volplane/internal/volume"
)

// Load reads the log and returns the keys of the intents in it that nobody has
// resolved. It reads only the first time, and again after a write whose outcome
// is not known. Before that it makes sure that no such write comes later, and
// that each key stands once.
func (l *IntentLog) Load(ctx context.Context) ([]string, error) {
	if l.isLoaded() {
		return nil, nil
	}
	l.turn.Lock()
	defer l.turn.Unlock()
	if l.isLoaded() {
		return nil, nil
	}
	list, err := l.client.CoreV1().ConfigMaps(l.place.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: volume.LabelIntents + "=" + l.place.Name})
	if err != nil {
		return nil, fmt.Errorf("read intents %s/%s: %w", l.place.Namespace, l.place.Name, err)
	}
	for _, name := range l.read(list.Items) {
		if err := l.replace(ctx, name, nil); err != nil {
			return nil, err
		}
	}
	return l.settle(), nil
}

func (l *IntentLog) isLoaded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.loaded
}

// read takes the objects of the server for what is known, and returns the names
// of those that have to be written before that can be relied on.
func (l *IntentLog) read(all []corev1.ConfigMap) (mend []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.entries
	l.entries, l.objects = map[string]*intent{}, map[string]*corev1.ConfigMap{}
	// One that was written later is read later. Only earlier versions of this
	// program left a key in two objects, or two writers at once.
	slices.SortStableFunc(all, func(a, b corev1.ConfigMap) int {
		order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
		if err != nil {
			return 0
		}
		return order
	})
	for i := range all {
		o := &all[i]
		if !slices.Contains(l.place.objects(), o.Name) {
			// Nobody who keeps a log here has written it.
			continue
		}
		for key, value := range o.Data {
			if e := l.entries[key]; e != nil {
				mend = append(mend, e.object)
			}
			l.entries[key] = &intent{value: value, object: o.Name, done: l.resolved(known[key], key, value)}
		}
		l.keep(o.Name, o)
	}
	mend = append(mend, l.unsettled()...)
	slices.Sort(mend)
	return slices.Compact(mend)
}

// resolved says whether what stands is what was resolved, and has not been put
// again by a write that got no answer.
func (l *IntentLog) resolved(known *intent, key, value string) bool {
	return known != nil && known.done && known.value == value && l.lost[key] != value
}

// unsettled returns the objects that are still as they were when a write of
// unknown outcome was made: it could come now. Written again, they refuse it.
func (l *IntentLog) unsettled() (names []string) {
	for name, before := range l.late {
		now := l.objects[name]
		switch {
		case now == nil && before == nil:
			l.fences[name] = true
			names = append(names, name)
		case now != nil && before != nil && now.ResourceVersion == before.ResourceVersion:
			names = append(names, name)
		}
	}
	return names
}

// settle ends a reading, and returns the keys that are open.
func (l *IntentLog) settle() (open []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.lost)
	clear(l.late)
	l.loaded = true
	for key, e := range l.entries {
		if !e.done {
			open = append(open, key)
		}
	}
	slices.Sort(open)
	return open
}

// refused says that the server has answered that it does not write, so that
// nothing comes later either.
func refused(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return false
	}
	code := answer.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusRequestTimeout
}
