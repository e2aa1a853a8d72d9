package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/volume"
)

// Load reads the log from the server and returns the keys of its unresolved intents. If the log is
// loaded already, it does nothing and returns nil. Otherwise it also makes sure that no earlier
// write of this process can still change the log, and that each key is in one object only. After an
// error it may be repeated.
func (l *IntentLog) Load(ctx context.Context) ([]string, error) {
	if l.isLoaded() {
		return nil, nil
	}
	l.ioMu.Lock()
	defer l.ioMu.Unlock()
	if l.isLoaded() {
		return nil, nil
	}
	list, err := l.sheets.List(ctx,
		metav1.ListOptions{LabelSelector: volume.LabelIntents + "=" + l.place.Name})
	if err != nil {
		return nil, fmt.Errorf("read intents %s/%s: %w", l.place.Namespace, l.place.Name, err)
	}
	for _, name := range l.read(list.Items) {
		if err := l.replace(ctx, name, nil); err != nil {
			return nil, err
		}
	}
	return l.finishLoad(), nil
}

// ReadIntentLogs returns the content of the intent logs of a namespace, resolved or not, by the name of the log and by
// key. It changes nothing, and others may write the logs at the same time. Objects that no writer of a log uses are
// left out.
func ReadIntentLogs(
	ctx context.Context, client kubernetes.Interface, namespace string,
) (map[string]map[string]string, error) {
	list, err := client.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{LabelSelector: volume.LabelIntents})
	if err != nil {
		return nil, fmt.Errorf("read the intents in %s: %w", namespace, err)
	}
	logs := map[string]map[string]string{}
	for i := range list.Items {
		o := &list.Items[i]
		name := o.Labels[volume.LabelIntents]
		if !(LogPlace{Namespace: namespace, Name: name}).has(o) {
			continue
		}
		if logs[name] == nil {
			logs[name] = map[string]string{}
		}
		maps.Copy(logs[name], o.Data)
	}
	return logs, nil
}

// Expire makes the log be read again before its next use, because another process may have written it. It may be
// repeated.
func (l *IntentLog) Expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loaded = false
}

func (l *IntentLog) isLoaded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.loaded
}

// read replaces the known state of the log by the objects that the server has, and returns the
// names of the objects that must be rewritten before that can be relied on.
func (l *IntentLog) read(all []corev1.ConfigMap) (rewrite []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.entries
	l.entries, l.objects = map[string]*intent{}, map[string]*corev1.ConfigMap{}
	// Of two objects with the same key, the one that was written later counts. A key is in two objects only because of
	// earlier versions of this program, or of two concurrent writers.
	slices.SortStableFunc(all, func(a, b corev1.ConfigMap) int {
		order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
		if err != nil {
			return 0
		}
		return order
	})
	for i := range all {
		o := &all[i]
		if !l.place.has(o) {
			continue
		}
		for key, value := range o.Data {
			if e := l.entries[key]; e != nil {
				rewrite = append(rewrite, e.object)
			}
			l.entries[key] = &intent{value: value, object: o.Name, resolved: l.isResolved(known[key], key, value)}
		}
		l.remember(o.Name, o)
	}
	rewrite = append(rewrite, l.needRewrite()...)
	slices.Sort(rewrite)
	return slices.Compact(rewrite)
}

// isResolved says whether the server's value for a key is the one that was resolved, and was not overwritten by a write
// whose outcome is unknown.
func (l *IntentLog) isResolved(known *intent, key, value string) bool {
	return known != nil && known.resolved && known.value == value && l.unconfirmed[key] != value
}

// needRewrite returns the objects that have not changed since a write whose outcome is unknown: that write could still
// arrive. After a rewrite, the server refuses it because of its old resource version.
func (l *IntentLog) needRewrite() (names []string) {
	for name, before := range l.pending {
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

// finishLoad marks the log as loaded and returns the keys of the unresolved intents.
func (l *IntentLog) finishLoad() (open []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.unconfirmed)
	clear(l.pending)
	l.loaded = true
	for key, e := range l.entries {
		if !e.resolved {
			open = append(open, key)
		}
	}
	slices.Sort(open)
	return open
}

// isRefusal says whether the server has answered that it refuses the write, so that the write
// cannot take effect later.
func isRefusal(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusRequestTimeout
}
