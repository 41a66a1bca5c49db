export function h(type: any, props?: any, ...children: any[]): any;
export function render(node: any, parent: Element): void;
export const html: (strings: TemplateStringsArray, ...values: any[]) => any;
export function useState<T = any>(initial: T | (() => T)): [T, (next: T | ((before: T) => T)) => void];
export function useEffect(effect: () => void | (() => void), deps?: unknown[]): void;
export function useLayoutEffect(effect: () => void | (() => void), deps?: unknown[]): void;
export function useRef<T = any>(initial: T): { current: T };
export function useMemo<T = any>(make: () => T, deps: unknown[]): T;
export function useErrorBoundary(onError?: (error: any) => void): [any, () => void];
