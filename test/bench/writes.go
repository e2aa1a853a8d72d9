package main

import (
	"context"
	"regexp"
	"strconv"
	"strings"
)

// writes counts the API server's requests that change something, from its own metrics: "PATCH nodes/status", with the
// code if it was refused.
func (a *arena) writes(ctx context.Context) (map[string]float64, error) {
	text, err := a.client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	label, out := regexp.MustCompile(`(\w+)="([^"]*)"`), map[string]float64{}
	for line := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(line, "apiserver_request_total{")
		if !ok {
			continue
		}
		labels, value, _ := strings.Cut(rest, "} ")
		of := map[string]string{}
		for _, l := range label.FindAllStringSubmatch(labels, -1) {
			of[l[1]] = l[2]
		}
		switch of["verb"] {
		case "POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION":
		default:
			continue
		}
		name := of["verb"] + " " + of["resource"]
		if of["subresource"] != "" {
			name += "/" + of["subresource"]
		}
		if !strings.HasPrefix(of["code"], "2") {
			name += " failed " + of["code"]
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			return nil, err
		}
		out[name] += n
	}
	return out, nil
}

// report writes the number of requests since before, divided by n, and returns the current counts. The requests of the
// benchmark itself, which creates and deletes Pods and plays the nodes, are among them.
func (a *arena) report(
	ctx context.Context, figures map[string]any, name string, before map[string]float64, n int,
) (map[string]float64, error) {
	now, err := a.writes(ctx)
	each := map[string]float64{}
	for k, v := range now {
		if v > before[k] {
			each[k] = (v - before[k]) / float64(n)
		}
	}
	figures[name] = each
	return now, err
}
