package storageprovider

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The interfaces, as a caller may query them.
var (
	//go:embed interface.varlink
	providerText string
	//go:embed service.varlink
	serviceText string
)

// descriptions returns the interfaces by their names.
func descriptions() map[string]string {
	return map[string]string{"org.varlink.service": serviceText, "io.systemd.StorageProvider": providerText}
}

// globLimit is the length of the longest glob.
const globLimit = 1024

// answer answers a call. An error has not been sent to the caller.
func (d *Door) answer(ctx context.Context, q call, send answers) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	switch q.Method {
	case ofService + "GetInfo":
		return send(reply{Parameters: map[string]any{
			"vendor": "volplane", "product": "volplane", "version": d.Version, "url": "https://volplane.dev",
			"interfaces": []string{"org.varlink.service", "io.systemd.StorageProvider"},
		}}, nil)
	case ofService + "GetInterfaceDescription":
		return describe(q, send)
	case ofProvider + "Acquire":
		return d.synced(ctx, func() error { return d.acquire(ctx, q, send) })
	case ofProvider + "ListVolumes":
		return d.synced(ctx, func() error { return list(q, send, "NoSuchVolume", d.volumes) })
	case ofProvider + "ListTemplates":
		return list(q, send, "NoSuchTemplate", func() ([]map[string]any, error) { return d.templates(ctx) })
	}
	unknown := fmt.Sprintf("%.200s", q.Method)
	return failure{name: ofService + "MethodNotFound", parameters: map[string]any{"method": unknown}}
}

// synced calls next when the claims are known: after a start, it waits for the API server.
func (d *Door) synced(ctx context.Context, next func() error) error {
	select {
	case <-d.ready:
		return next()
	case <-ctx.Done():
		return fmt.Errorf("volplane has not reached its API server yet: is the control plane running? %w", ctx.Err())
	}
}

// read reads the parameters of a call into the known ones. A parameter that is null is missing.
func (q call) read(known map[string]any) error {
	given := map[string]json.RawMessage{}
	if len(q.Parameters) > 0 && json.Unmarshal(q.Parameters, &given) != nil {
		return invalid("parameters")
	}
	for name, text := range given {
		target, is := known[name]
		if !is || json.Unmarshal(text, target) != nil {
			return invalid(fmt.Sprintf("%.200s", name))
		}
	}
	return nil
}

func describe(q call, send answers) error {
	var name string
	if err := q.read(map[string]any{"interface": &name}); err != nil {
		return err
	}
	text, known := descriptions()[name]
	if !known {
		return failure{name: ofService + "InterfaceNotFound", parameters: map[string]any{
			"interface": fmt.Sprintf("%.200s", name),
		}}
	}
	return send(reply{Parameters: map[string]any{"description": text}}, nil)
}

// list answers with all entries whose names match, each in an answer of its own; none is an error.
func list(q call, send answers, none string, all func() ([]map[string]any, error)) error {
	var glob *string
	if err := q.read(map[string]any{"matchName": &glob}); err != nil {
		return err
	}
	if !q.More {
		return failure{name: ofService + "ExpectedMore"}
	}
	match := func(string) bool { return true }
	if glob != nil {
		// A shell negates by an exclamation mark.
		pattern := strings.ReplaceAll(*glob, "[!", "[^")
		if _, err := path.Match(pattern, ""); err != nil || len(pattern) > globLimit {
			return invalid("matchName")
		}
		match = func(name string) bool {
			is, _ := path.Match(pattern, name)
			return is
		}
	}
	entries, err := all()
	if err != nil {
		return err
	}
	entries = slices.DeleteFunc(entries, func(e map[string]any) bool { return !match(fmt.Sprint(e["name"])) })
	if len(entries) == 0 {
		return fails(none)
	}
	slices.SortStableFunc(entries, func(a, b map[string]any) int {
		return strings.Compare(fmt.Sprint(a["name"]), fmt.Sprint(b["name"]))
	})
	for i, e := range entries {
		if err := send(reply{Parameters: e, Continues: i < len(entries)-1}, nil); err != nil {
			return err
		}
	}
	return nil
}

func (d *Door) volumes() ([]map[string]any, error) {
	var all []map[string]any
	for _, c := range d.claims.List() {
		if c.DeletionTimestamp != nil {
			continue
		}
		e := map[string]any{"name": c.Name, "type": typeOf(c), "readOnly": readsOnly(c)}
		if size, known := c.Status.Capacity[corev1.ResourceStorage]; known {
			e["sizeBytes"] = size.Value()
		}
		all = append(all, e)
	}
	return all, nil
}

func (d *Door) templates(ctx context.Context) ([]map[string]any, error) {
	classes, err := d.client.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list classes: %w", err)
	}
	var all []map[string]any
	for _, c := range classes.Items {
		for _, kind := range []string{directory, device} {
			all = append(all, map[string]any{"name": c.Name, "type": kind})
		}
	}
	return all, nil
}

// passed passes a file to a caller, and closes it.
func passed(send answers, r reply, file *os.File) error {
	err := send(r, file)
	if bad := file.Close(); err == nil && bad != nil {
		err = fmt.Errorf("close the volume: %w", bad)
	}
	return err
}
