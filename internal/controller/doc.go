// Package controller holds what all controllers share: the declaration of what
// each reads and writes, and the loop that runs it.
//
// A controller is gather -> decide -> apply: Reconcile gathers the facts about
// one key from the caches, asks a function of internal/decide for a plan, and
// applies the plan's actions in order. Controllers never import each other;
// they meet only through API objects.
package controller
