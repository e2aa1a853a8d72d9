// Package nodelife marks nodes whose agents have stopped, as Kubernetes' node
// lifecycle controller does: their Ready condition becomes Unknown. The agent
// sets it again when it is back.
package nodelife
